//! Each fault is planted in a database that is otherwise sound, and must be named.

use super::findings::Kind;
use super::*;

mod world;

use world::{Tally, World};

/// The kinds of all violations, which must be few enough to be named.
fn kinds(findings: &Findings) -> Vec<Kind> {
    assert_eq!(findings.total(), findings.named().len() as u64);
    findings.named().iter().map(|violation| violation.kind).collect()
}

/// Two rooms of three and two commands; the first has moved once, and all is delivered.
async fn sound() -> World {
    let mut world = World::new().await;
    world.take("a", 1, "node-1").await;
    world.take("b", 1, "node-1").await;
    world.commit("a", "c1", &[b"x", b"y"]).await;
    world.commit("b", "c1", &[b"x"]).await;
    world.take("a", 2, "node-2").await;
    world.commit("a", "c2", &[]).await;
    world.commit("a", "c3", &[b"z"]).await;
    world.commit("b", "c2", &[b"w"]).await;
    world
}

#[tokio::test]
async fn a_sound_database_passes_and_everything_is_counted() {
    let mut world = sound().await;
    world.give_up("a", "never-sent");
    world.give_up("a", "c2");
    world.redeliver(0);
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), []);
    let wanted = Counts {
        rooms: 2,
        commands: 5,
        events: 5,
        events_delivered: 5,
        events_redelivered: 1,
        acked: 5,
        unknown: 2,
        unknown_committed: 1,
        epochs: 3,
        ..Counts::default()
    };
    assert_eq!(findings.counts, wanted);
}

#[tokio::test]
async fn p1_a_gap_in_a_log_is_named_with_its_place() {
    let mut world = sound().await;
    world.acks.clear();
    world.sql("DELETE FROM room_command_log WHERE room_id = X'61' AND seq = 2").await;
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), [Kind::Gap]);
    let named = &findings.named()[0];
    assert_eq!((named.promise, named.app.as_str(), named.room.as_str(), named.seq), ("P1", "app", "a", 3));
}

#[tokio::test]
async fn p1_an_epoch_that_falls_is_named() {
    let mut world = sound().await;
    world.acks.clear();
    world.sql("UPDATE room_command_log SET epoch = 3 WHERE room_id = X'61' AND seq = 1").await;
    assert_eq!(kinds(&world.examine().await), [Kind::EpochFell]);
}

#[tokio::test]
async fn p1_two_tokens_or_two_owners_of_one_epoch_are_named() {
    let mut world = sound().await;
    world.sql("UPDATE room_command_log SET lease_token = X'00' WHERE room_id = X'61' AND seq = 2").await;
    assert_eq!(kinds(&world.examine().await), [Kind::EpochTwoTokens]);

    let mut world = sound().await;
    world.sql("UPDATE room_command_log SET owner_node_id = X'00' WHERE room_id = X'61' AND seq = 2").await;
    assert_eq!(kinds(&world.examine().await), [Kind::EpochTwoOwners]);
}

#[tokio::test]
async fn p1_a_token_that_is_used_again_for_another_epoch_is_named() {
    let mut world = sound().await;
    world
        .sql(
            "UPDATE room_command_log SET lease_token = (SELECT lease_token FROM room_command_log \
             WHERE room_id = X'61' AND seq = 2) WHERE room_id = X'61' AND seq = 1",
        )
        .await;
    assert_eq!(kinds(&world.examine().await), [Kind::TokenTwoEpochs, Kind::TokenTwoEpochs]);
}

#[tokio::test]
async fn p1_a_head_or_an_owner_that_does_not_fit_the_log_is_named() {
    for (sql, wanted) in [
        ("UPDATE room_head SET seq = 7 WHERE room_id = X'61'", Kind::HeadDiffers),
        ("DELETE FROM room_head WHERE room_id = X'61'", Kind::HeadDiffers),
        ("UPDATE room_head SET room_id = X'63' WHERE room_id = X'61'", Kind::HeadDiffers),
        ("UPDATE room_owner SET epoch = 1 WHERE room_id = X'61'", Kind::OwnerDiffers),
        ("UPDATE room_owner SET owner_node_id = X'00' WHERE room_id = X'61'", Kind::OwnerDiffers),
        ("DELETE FROM room_owner WHERE room_id = X'61'", Kind::OwnerDiffers),
    ] {
        let mut world = sound().await;
        world.sql(sql).await;
        let found = kinds(&world.examine().await);
        assert!(!found.is_empty() && found.iter().all(|kind| *kind == wanted), "{sql}: {found:?}");
    }
}

#[tokio::test]
async fn p1_a_head_whose_state_the_log_does_not_lead_to_is_named() {
    let mut world = sound().await;
    world.sql("UPDATE room_head SET state_hash = zeroblob(32) WHERE room_id = X'62'").await;
    assert_eq!(kinds(&world.examine().await), [Kind::StateHashDiffers]);
}

#[tokio::test]
async fn p1_a_snapshot_is_compared_with_the_log_and_bridges_trimmed_rows() {
    let mut world = sound().await;
    world.snapshot("a", 2, b"xy").await;
    let findings = world.examine().await;
    assert_eq!((kinds(&findings), findings.counts.snapshots_checked), (vec![], 1));

    world.sql("UPDATE room_command_log SET events = X'' WHERE room_id = X'61' AND seq < 3").await;
    assert_eq!(kinds(&world.examine().await), []);

    world.sql("DELETE FROM room_snapshot").await;
    assert_eq!(kinds(&world.examine().await), [Kind::TrimmedWithoutSnapshot]);

    let mut world = sound().await;
    world.snapshot("a", 2, b"xx").await;
    assert_eq!(kinds(&world.examine().await), [Kind::StateHashDiffers]);

    let mut world = sound().await;
    world.snapshot("a", 4, b"xyz").await;
    assert_eq!(kinds(&world.examine().await), [Kind::SnapshotDiffers]);
}

#[tokio::test]
async fn p1_events_that_cannot_be_read_are_named() {
    let mut world = sound().await;
    world.sql("UPDATE room_command_log SET events = X'05' WHERE room_id = X'62' AND seq = 1").await;
    let found = kinds(&world.examine().await);
    assert_eq!(found, [Kind::RowUnreadable, Kind::StateHashDiffers]);
}

#[tokio::test]
async fn p2_an_acknowledged_command_that_is_gone_is_lost() {
    let mut world = sound().await;
    world.acknowledge("a", "c9", 9);
    world.acknowledge("nowhere", "c1", 1);
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), [Kind::AckLost, Kind::AckLost]);
    assert_eq!(findings.counts.commands_lost, 2);
    assert!(findings.named()[0].detail.contains("c9"));
}

#[tokio::test]
async fn p3_an_acknowledged_command_at_another_place_is_not_lost_but_named() {
    let mut world = sound().await;
    world.acknowledge("a", "c1", 2);
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), [Kind::AckOtherSeq]);
    assert_eq!(findings.counts.commands_lost, 0);
    assert!(findings.named()[0].detail.ends_with("the log has it at 1"), "{}", findings.named()[0]);
}

#[tokio::test]
async fn p3_an_acknowledged_command_with_another_result_or_epoch_is_named() {
    let mut world = sound().await;
    world.sql("UPDATE room_command_log SET result = X'00' WHERE room_id = X'61' AND seq = 3").await;
    assert_eq!(kinds(&world.examine().await), [Kind::AckOtherResult]);

    let mut world = sound().await;
    let LedgerEntry::Ack(ack) = &mut world.acks[0] else { panic!("the first entry is an acknowledgement") };
    ack.epoch = 2;
    assert_eq!(kinds(&world.examine().await), [Kind::AckOtherEpoch]);
}

#[tokio::test]
async fn p3_a_command_id_that_is_in_a_log_twice_is_named() {
    let mut world = sound().await;
    world.drop_unique_key().await;
    world.acks.clear();
    world.sql("UPDATE room_command_log SET command_id = 'c1' WHERE room_id = X'61'").await;
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), [Kind::CommandDoubled]);
    assert_eq!(findings.counts.commands_doubled, 2);
}

#[tokio::test]
async fn p3_a_refused_command_in_the_log_is_named() {
    let mut world = sound().await;
    world.refuse("a", "c3");
    world.refuse("a", "c4");
    assert_eq!(kinds(&world.examine().await), [Kind::RefusedInLog]);
}

#[tokio::test]
async fn p4_an_event_that_is_nowhere_is_missing() {
    let mut world = sound().await;
    world.deliveries.remove(1);
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), [Kind::EventMissing]);
    assert_eq!((findings.counts.events_missing, findings.counts.events_delivered), (1, 4));
}

#[tokio::test]
async fn p4_an_event_that_waits_or_was_given_up_is_named() {
    for (state, wanted) in [("pending", Kind::EventPending), ("failed", Kind::EventFailed)] {
        let mut world = sound().await;
        world.deliveries.remove(1);
        world.enqueue("a", 1, 1, state).await;
        let findings = world.examine().await;
        assert_eq!(kinds(&findings), [wanted]);
        assert_eq!((findings.counts.events_missing, findings.counts.events_pending), (0, 1));
    }
}

#[tokio::test]
async fn p4_events_out_of_order_are_named_also_within_a_command() {
    for (one, other) in [(0, 1), (1, 3)] {
        let mut world = sound().await;
        world.deliveries.swap(one, other);
        assert_eq!(kinds(&world.examine().await), [Kind::EventReordered], "{one} {other}");
    }
}

#[tokio::test]
async fn p4_order_is_by_the_first_delivery_and_within_a_room() {
    let mut world = sound().await;
    world.redeliver(0);
    world.redeliver(3);
    // Another room's event may come at any time.
    let other = world.deliveries.remove(2);
    world.deliveries.push(other);
    world.deliveries.swap(3, 4);
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), [Kind::EventReordered]);
    assert_eq!(findings.named()[0].room, "b");
}

#[tokio::test]
async fn p4_an_event_with_other_bytes_or_under_another_id_is_named() {
    let mut world = sound().await;
    world.deliver("a", 3, 0, b"other");
    world.deliveries.swap_remove(3);
    assert_eq!(kinds(&world.examine().await), [Kind::EventDiffers]);

    let mut world = sound().await;
    world.deliveries[0][1] = b"app/a/1/9".to_vec();
    assert_eq!(kinds(&world.examine().await), [Kind::EventDiffers, Kind::EventMissing]);
}

#[tokio::test]
async fn p2_an_event_of_a_command_that_never_committed_is_named() {
    for (room, seq, index) in [("a", 4, 0), ("a", 2, 0), ("nowhere", 1, 0)] {
        let mut world = sound().await;
        world.deliver(room, seq, index, b"x");
        assert_eq!(kinds(&world.examine().await)[0], Kind::EventUnexpected, "{room} {seq}");

        let mut world = sound().await;
        world.enqueue(room, seq, index, "pending").await;
        assert_eq!(kinds(&world.examine().await), [Kind::EventUnexpected], "{room} {seq} in the outbox");
    }
}

#[tokio::test]
async fn pages_join_without_a_seam() {
    let mut world = World::new().await;
    world.take("a", 1, "node-1").await;
    world.take("b", 1, "node-1").await;
    for number in 0..1_500 {
        world.commit("a", &format!("c{number}"), &[b"x"]).await;
    }
    world.commit("b", "c1", &[b"x"]).await;
    let findings = world.examine().await;
    assert_eq!(kinds(&findings), []);
    assert_eq!((findings.counts.commands, findings.counts.events_delivered), (1_501, 1_501));
}

#[tokio::test]
async fn the_whole_audit_reads_ledgers_from_files_and_ends_with_the_verdict() {
    let mut world = sound().await;
    let dir = tempfile::tempdir().unwrap();
    let (ledger, report) = (dir.path().join("ledger.jsonl"), dir.path().join("report.json"));
    let args = |world: &World| AuditArgs {
        database_url: world.url.clone().into(),
        ledger: vec![ledger.clone()],
        sink: None,
        wait: Duration::ZERO,
        report: Some(report.clone()),
    };
    let verdict =
        || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap() };
    let lines = |world: &World| {
        world.acks.iter().map(|entry| serde_json::to_string(entry).unwrap() + "\n").collect::<String>()
    };

    std::fs::write(&ledger, lines(&world)).unwrap();
    let exit = run_with(args(&world), Tally).await.unwrap();
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::SUCCESS));
    assert_eq!(verdict()["audit"], "pass");
    assert_eq!((verdict()["acked"].as_u64(), verdict()["violations_total"].as_u64()), (Some(5), Some(0)));

    world.acknowledge("a", "c9", 9);
    std::fs::write(&ledger, lines(&world)).unwrap();
    let exit = run_with(args(&world), Tally).await.unwrap();
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::FAILURE));
    assert_eq!(verdict()["audit"], "fail");
    assert_eq!(verdict()["violations"][0]["kind"], "ack_lost");
    assert_eq!(verdict()["violations"][0]["promise"], "P2");

    let bad = AuditArgs { database_url: "postgres://nowhere".to_owned().into(), ..args(&world) };
    let exit = run_with(bad, Tally).await.unwrap();
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::from(Exit::BadConfig)));
}
