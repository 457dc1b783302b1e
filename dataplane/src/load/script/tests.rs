use std::collections::BTreeSet;

use super::*;

/// A room that answers as the API says, for one lane.
#[derive(Default)]
struct FakeRoom {
    seq: u64,
    present: BTreeSet<usize>,
    on_mic: Option<usize>,
}

impl FakeRoom {
    fn answer(&mut self, op: Op, seat: u32) -> pb::CommandResponse {
        self.seq += 1;
        let kind = match op {
            Op::Create { seats } => Kind::Created(pb::RoomCreatedResult { seat_count: seats }),
            Op::Join { user } => {
                self.present.insert(user);
                Kind::Joined(pb::JoinedResult { present_users: self.present.len() as u32 })
            }
            Op::MicUp { user } => {
                assert!(self.present.contains(&user), "a user who is not present asked for a seat");
                assert_eq!(self.on_mic.replace(user), None, "the seat was taken");
                Kind::MicUp(pb::MicUpResult {
                    seat_no: seat,
                    mic_session_id: format!("s{user}"),
                    publish_deadline_ms: 9_000,
                })
            }
            Op::MicDown { user } => {
                assert_eq!(self.on_mic.take(), Some(user), "a user without a seat gave it up");
                Kind::MicDown(pb::MicDownResult { seat_no: seat, mic_session_id: format!("s{user}") })
            }
            Op::Leave { user } => {
                if self.on_mic == Some(user) {
                    self.on_mic = None;
                }
                Kind::Left(pb::LeftResult { was_present: self.present.remove(&user) })
            }
        };
        response(self.seq, 1, 1, kind)
    }
}

fn response(seq: u64, epoch: u64, owner_epoch: u64, kind: Kind) -> pb::CommandResponse {
    pb::CommandResponse {
        seq,
        epoch,
        committed_at_ms: 1,
        replayed: false,
        owner: Some(pb::Owner { node_id: "a".into(), epoch: owner_epoch }),
        result: Some(pb::CommandResult { kind: Some(kind) }),
    }
}

fn run(script: &mut LaneScript, room: &mut FakeRoom, commands: usize) -> Vec<&'static str> {
    (0..commands)
        .map(|_| {
            let op = script.next();
            let answer = room.answer(op, script.seat());
            script.acked(op, &answer).unwrap();
            op.name()
        })
        .collect()
}

#[test]
fn every_command_of_a_cycle_is_valid_and_the_seat_goes_from_user_to_user() {
    let (mut script, mut room) = (LaneScript::new(3, true), FakeRoom::default());
    let names = run(&mut script, &mut room, 400);
    assert_eq!(names[..7], ["join", "mic_up", "join", "mic_down", "mic_up", "leave", "join"]);
    assert!(room.present.len() <= 2, "{:?}", room.present);
}

#[test]
fn a_lane_without_a_seat_only_joins_and_leaves() {
    let (mut script, mut room) = (LaneScript::new(MAX_SEATS, true), FakeRoom::default());
    let names = run(&mut script, &mut room, 40);
    assert!(names.iter().all(|name| ["join", "leave"].contains(name)), "{names:?}");
}

#[test]
fn after_an_unknown_outcome_all_users_leave_and_the_cycle_begins_anew() {
    for commands in 0..12 {
        for applied in [false, true] {
            let (mut script, mut room) = (LaneScript::new(0, true), FakeRoom::default());
            run(&mut script, &mut room, commands);
            if applied {
                room.answer(script.next(), script.seat());
            }
            script.unsure();
            let names = run(&mut script, &mut room, 20);
            assert_eq!(names[..5], ["leave", "leave", "leave", "join", "mic_up"], "{commands} {applied}");
        }
    }
}

#[test]
fn answers_out_of_order_are_named() {
    let created = || Kind::Created(pb::RoomCreatedResult { seat_count: 8 });
    let op = Op::Create { seats: 8 };
    let cases = [
        (response(4, 2, 2, created()), WrongAnswer::SeqNotAscending { last: 4, got: 4 }),
        (response(5, 1, 2, created()), WrongAnswer::EpochFell { last: 2, got: 1 }),
        (response(5, 2, 1, created()), WrongAnswer::OwnerEpochFell { last: 2, got: 1 }),
    ];
    for (answer, wanted) in cases {
        let mut script = LaneScript::new(0, true);
        script.acked(op, &response(4, 2, 2, created())).unwrap();
        assert_eq!(script.acked(op, &answer), Err(wanted));
    }
}

#[test]
fn a_result_of_another_command_and_another_seat_are_named() {
    let mut script = LaneScript::new(0, true);
    let other = response(1, 1, 1, Kind::Left(pb::LeftResult { was_present: true }));
    let wrong = script.acked(Op::Join { user: 0 }, &other);
    assert_eq!(wrong, Err(WrongAnswer::OtherKind { op: "join", got: "left" }));

    let up = pb::MicUpResult { seat_no: 2, mic_session_id: "s".into(), publish_deadline_ms: 0 };
    let wrong = script.acked(Op::MicUp { user: 0 }, &response(2, 1, 1, Kind::MicUp(up)));
    assert_eq!(wrong, Err(WrongAnswer::OtherSeat { wanted: 1, got: 2 }));
}

#[test]
fn a_user_who_had_joined_must_be_present_when_leaving() {
    let (mut script, mut room) = (LaneScript::new(0, true), FakeRoom::default());
    run(&mut script, &mut room, 5);
    let op = script.next();
    let gone = response(6, 1, 1, Kind::Left(pb::LeftResult { was_present: false }));
    assert_eq!(script.acked(op, &gone), Err(WrongAnswer::NotPresent));
}

#[test]
fn a_read_must_show_what_was_acknowledged() {
    let (mut script, mut room) = (LaneScript::new(0, true), FakeRoom::default());
    run(&mut script, &mut room, 2);
    let seat = pb::Seat {
        seat_no: 1,
        state: pb::MicState::PendingPublish.into(),
        user_id: "user-0-0".into(),
        mic_session_id: "s0".into(),
        ..Default::default()
    };
    let good = pb::Room {
        status: pb::RoomStatus::Active.into(),
        version: 2,
        seats: vec![seat],
        users: vec![pb::Presence { user_id: "user-0-0".into(), ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(script.check_read(Some(&good), 1), Ok(()));
    let behind = pb::Room { version: 1, ..good.clone() };
    assert_eq!(script.check_read(Some(&behind), 1), Err(WrongAnswer::ReadBehind { version: 1, seq: 2 }));
    let without_user = pb::Room { users: Vec::new(), ..good.clone() };
    assert_eq!(
        script.check_read(Some(&without_user), 1),
        Err(WrongAnswer::ReadLacks("a user who had joined"))
    );
    let without_seat = pb::Room { seats: Vec::new(), ..good };
    assert_eq!(
        script.check_read(Some(&without_seat), 1),
        Err(WrongAnswer::ReadLacks("a seat that was taken"))
    );
    assert_eq!(script.check_read(Some(&without_seat), 9_000), Ok(()), "nobody published in time");
}

#[test]
fn a_refusal_is_in_order_only_after_the_publish_deadline() {
    for (now_ms, in_order) in [(8_999, false), (9_000, true)] {
        let (mut script, mut room) = (LaneScript::new(0, true), FakeRoom::default());
        run(&mut script, &mut room, 3);
        let op = script.next();
        assert!(matches!(op, Op::MicDown { .. }));
        assert_eq!(script.refused(op, now_ms), in_order);
    }
}
