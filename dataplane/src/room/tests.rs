use proptest::prelude::*;

use super::*;
use pb::room_command::Kind;

fn key() -> RoomKey {
    RoomKey::new("app", "room").unwrap()
}

fn create() -> Kind {
    Kind::Create(pb::CreateRoomRequest { scope: None, owner_user_id: "host".into(), seat_count: 2 })
}

fn join(user: &str) -> Kind {
    Kind::Join(pb::JoinRoomRequest { scope: None, user_id: user.into() })
}

fn leave(user: &str) -> Kind {
    Kind::Leave(pb::LeaveRoomRequest { scope: None, user_id: user.into() })
}

fn mic_up(user: &str, seat_no: u32) -> Kind {
    Kind::MicUp(pb::MicUpRequest { scope: None, user_id: user.into(), seat_no })
}

fn mic_down(user: &str) -> Kind {
    Kind::MicDown(pb::MicDownRequest { scope: None, user_id: user.into() })
}

fn close(user: &str) -> Kind {
    Kind::Close(pb::CloseRoomRequest { scope: None, user_id: user.into() })
}

struct Room {
    state: RoomState,
    seq: Seq,
}

impl Room {
    fn new(commands: &[Kind]) -> Self {
        let mut room = Self { state: VoiceRoom.initial(), seq: Seq(0) };
        for command in commands {
            room.apply(command).expect("accepted");
        }
        room
    }

    fn apply(&mut self, command: &Kind) -> Result<Bytes, Rejection> {
        let room = key();
        let context = Context { room: &room, now_ms: 1_000 + self.seq.0 as i64, seq: self.seq.next() };
        let decision = VoiceRoom.decide(&self.state, command, context)?;
        for event in &decision.events {
            let encoded = VoiceRoom.encode_event(event);
            let event = VoiceRoom.decode_event(&encoded.payload).expect("own event");
            VoiceRoom.evolve(&mut self.state, &event);
        }
        self.seq = self.seq.next();
        Ok(decision.result)
    }

    fn reason(&mut self, command: &Kind) -> String {
        self.apply(command).expect_err("rejected").reason
    }
}

#[test]
fn commands_that_do_not_fit_the_state_are_rejected_with_a_stable_reason() {
    let active = [create(), join("ann")];
    let table: &[(&[Kind], Kind, &str)] = &[
        (&[], join("ann"), "ROOM_NOT_FOUND"),
        (&[], close("host"), "ROOM_NOT_FOUND"),
        (&active, create(), "ROOM_EXISTS"),
        (&active, mic_up("bob", 0), "NOT_PRESENT"),
        (&active, mic_up("ann", 3), "SEAT_UNKNOWN"),
        (&active, mic_down("ann"), "NOT_ON_MIC"),
        (&active, close("ann"), "NOT_ROOM_OWNER"),
        (&active, join(""), "INVALID_USER_ID"),
        (&active, join("a\0"), "INVALID_USER_ID"),
        (&[create(), join("ann"), mic_up("ann", 1)], mic_up("ann", 2), "ALREADY_ON_MIC"),
        (&[create(), join("ann"), join("bob"), mic_up("ann", 1)], mic_up("bob", 1), "SEAT_TAKEN"),
        (&[create(), close("host")], join("ann"), "ROOM_CLOSED"),
        (&[create(), close("host")], leave("ann"), "ROOM_CLOSED"),
        (&[create(), close("host")], close("host"), "ROOM_CLOSED"),
    ];
    for (before, command, reason) in table {
        assert_eq!(Room::new(before).reason(command), *reason, "{before:?} then {command:?}");
    }
}

#[test]
fn leaving_frees_the_seat() {
    let mut room = Room::new(&[create(), join("ann"), mic_up("ann", 1), leave("ann")]);
    assert_eq!(room.state.seats, vec![None, None]);
    assert!(room.state.users.is_empty());
    room.apply(&join("bob")).unwrap();
    room.apply(&mic_up("bob", 1)).unwrap();
}

#[test]
fn closing_clears_presence_and_keeps_the_seat_numbers() {
    let room = Room::new(&[create(), join("ann"), mic_up("ann", 2), close("host")]);
    assert_eq!(room.state.status, state::Status::Closed);
    assert!(room.state.users.is_empty());
    assert_eq!(room.state.seats, vec![None, None]);
}

#[test]
fn a_heartbeat_refreshes_a_presence_and_never_creates_one() {
    let mut room = Room::new(&[create(), join("ann")]);
    let beat = |user: &str| {
        pb::RoomHeartbeatRequest { app_code: "app".into(), room_id: "room".into(), user_id: user.into() }
            .encode_to_vec()
    };
    let before = VoiceRoom.state_hash(&room.state);
    VoiceRoom.touch(&mut room.state, &beat("ann"), 9_000).unwrap();
    assert_eq!(room.state.users["ann"].last_seen_at_ms, 9_000);
    assert_eq!(VoiceRoom.state_hash(&room.state), before, "heartbeats are outside the hash");
    assert_eq!(VoiceRoom.touch(&mut room.state, &beat("bob"), 9_000).unwrap_err().reason, "NOT_PRESENT");
    assert!(!room.state.users.contains_key("bob"));
}

#[test]
fn a_snapshot_of_another_format_is_refused() {
    let room = Room::new(&[create()]);
    let bytes = VoiceRoom.encode_snapshot(&room.state);
    assert!(VoiceRoom.decode_snapshot(2, &bytes).unwrap_err().problem.contains("format 2"));
    assert!(VoiceRoom.decode_snapshot(1, b"\xff\xff").is_err());
}

fn any_command() -> impl Strategy<Value = Kind> {
    let user = prop::sample::select(vec!["host", "ann", "bob", "cid"]);
    (0..7u8, user, 0..4u32).prop_map(|(kind, user, seat)| match kind {
        0 => create(),
        1 | 2 => join(user),
        3 => leave(user),
        4 => mic_up(user, seat),
        5 => mic_down(user),
        _ => close(if seat == 0 { user } else { "nobody" }),
    })
}

proptest! {
    #[test]
    fn any_order_of_commands_keeps_the_invariants(commands in prop::collection::vec(any_command(), 0..60)) {
        let mut room = Room::new(&[]);
        for command in &commands {
            let before = room.state.clone();
            if room.apply(command).is_err() {
                prop_assert_eq!(&before, &room.state);
            }
            let seated: Vec<_> = room.state.seats.iter().flatten().map(|s| s.user_id.clone()).collect();
            let mut distinct = seated.clone();
            distinct.sort();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), seated.len(), "one seat a user");
            prop_assert!(seated.iter().all(|user| room.state.users.contains_key(user)), "seated means present");
            let bytes = VoiceRoom.encode_snapshot(&room.state);
            let restored = VoiceRoom.decode_snapshot(VoiceRoom::SNAPSHOT_FORMAT, &bytes).unwrap();
            prop_assert_eq!(&restored, &room.state, "a snapshot holds the whole state");
            prop_assert_eq!(VoiceRoom.state_hash(&restored), VoiceRoom.state_hash(&room.state));
        }
    }
}
