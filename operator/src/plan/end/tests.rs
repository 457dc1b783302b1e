//! Each test ends a pod that may be ended, and then breaks one thing.

use roomcluster_crds::DrainReason;

use super::*;
use crate::ids::{DrainEpoch, Incarnation, PodUid};
use crate::plan::fixture::{ago, crashing, draining, now, policy, serving, unpullable, witnessed};
use crate::plan::observed::BlockedRooms;

const AMONG_OTHERS: Surroundings =
    Surroundings { no_successor_ever: false, is_alone: false, blocks_others: false };
const LAST: Surroundings = Surroundings { no_successor_ever: true, is_alone: true, blocks_others: false };

fn empty() -> ObservedPod {
    witnessed(draining(serving("a", "v1", 0), DrainReason::Upgrade), "b", 0, Some(0))
}

fn verdict(pod: &ObservedPod) -> Result<Grounds, BlockedReason> {
    may_end(pod, &policy(3), AMONG_OTHERS, now())
}

#[test]
fn an_emptied_pod_is_ended_when_both_sources_say_zero() {
    assert_eq!(verdict(&empty()), Ok(Grounds::Empty));
}

#[test]
fn an_unknown_count_is_not_zero() {
    let mut silent = empty();
    silent.sample = None;
    assert_eq!(verdict(&silent), Err(BlockedReason::RoomCountUnknown));
    let mut unreachable = empty();
    unreachable.report = None;
    assert_eq!(verdict(&unreachable), Err(BlockedReason::RoomCountUnknown));
}

#[test]
fn a_count_of_another_pod_another_order_or_another_process_says_nothing() {
    type Break = fn(&mut ObservedPod);
    let breaks: [Break; 6] = [
        |pod| pod.sample.as_mut().unwrap().uid = PodUid::new("x"),
        |pod| pod.sample.as_mut().unwrap().epoch = DrainEpoch::FIRST,
        |pod| pod.sample.as_mut().unwrap().incarnation = Incarnation::new("x"),
        |pod| pod.report.as_mut().unwrap().epoch = DrainEpoch::FIRST,
        |pod| pod.report.as_mut().unwrap().order = Some(Order::Serve),
        |pod| pod.intent = None,
    ];
    for spoil in breaks {
        let mut pod = empty();
        spoil(&mut pod);
        assert_eq!(verdict(&pod), Err(BlockedReason::OrderNotConfirmed), "{pod:?}");
    }
    let mut reused_address = empty();
    reused_address.report.as_mut().unwrap().uid = PodUid::new("x");
    assert_eq!(verdict(&reused_address), Err(BlockedReason::RoomCountUnknown));
}

#[test]
fn a_pod_with_rooms_is_kept_and_says_what_holds_them() {
    let mut pod = empty();
    pod.sample.as_mut().unwrap().rooms = 2;
    pod.report.as_mut().unwrap().blocked =
        vec![BlockedRooms { reason: "SnapshotFlush".to_owned(), rooms: 2 }];
    let held_by = Some("SnapshotFlush: 2".to_owned());
    assert_eq!(verdict(&pod), Err(BlockedReason::HoldsRooms { rooms: 2, held_by }));
}

#[test]
fn a_pod_that_still_gets_traffic_is_kept() {
    let mut ready = empty();
    ready.ready.is_ready = true;
    assert_eq!(verdict(&ready), Err(BlockedReason::StillReady));
    let mut listed = empty();
    listed.in_endpoints = true;
    assert_eq!(verdict(&listed), Err(BlockedReason::StillReady));
}

#[test]
fn a_pod_is_kept_while_the_database_differs_or_nobody_can_say() {
    let differs = witnessed(empty(), "b", 3, Some(0));
    assert_eq!(verdict(&differs), Err(BlockedReason::LeaseViewDiffers { unreleased: 3 }));
    for (witness, reason) in [
        (Witness::NotAsked, BlockedReason::NoWitness),
        (Witness::Nobody, BlockedReason::NoWitness),
        (
            Witness::Silent { message: "x".to_owned() },
            BlockedReason::WitnessSilent { message: "x".to_owned() },
        ),
    ] {
        assert_eq!(verdict(&ObservedPod { witness, ..empty() }), Err(reason));
    }
    assert_eq!(
        verdict(&witnessed(empty(), "a", 0, Some(0))),
        Err(BlockedReason::NoWitness),
        "its own witness"
    );
}

#[test]
fn rows_of_an_earlier_process_do_not_hold_a_pod_once_their_leases_are_known_to_be_gone() {
    let restarted = |leased| ObservedPod {
        container: RoomContainer::Running { restarted: true },
        ..witnessed(empty(), "b", 3, leased)
    };
    assert_eq!(verdict(&restarted(Some(0))), Ok(Grounds::Empty));
    assert!(verdict(&restarted(Some(1))).is_err());
    assert!(verdict(&restarted(None)).is_err(), "a wiped lease store says nothing");
}

#[test]
fn a_pod_that_never_ran_is_ended_unless_a_witness_knows_better() {
    let pod = draining(unpullable("a", "v2"), DrainReason::Upgrade);
    for witness in [Witness::Nobody, Witness::Silent { message: String::new() }] {
        assert_eq!(verdict(&ObservedPod { witness, ..pod.clone() }), Ok(Grounds::NeverRan));
    }
    assert_eq!(verdict(&witnessed(pod.clone(), "b", 0, None)), Ok(Grounds::NeverRan));
    assert!(verdict(&witnessed(pod, "b", 1, None)).is_err());
}

#[test]
fn a_pod_whose_process_has_ended_needs_the_second_source_alone() {
    let pod = draining(crashing("a", "v2"), DrainReason::Upgrade);
    for (unreleased, leased, expected) in [
        (0, None, Ok(Grounds::NotRunning)),
        (5, Some(0), Ok(Grounds::NotRunning)),
        (5, Some(2), Err(BlockedReason::LeasesAlive { leased: Some(2) })),
        (5, None, Err(BlockedReason::LeasesAlive { leased: None })),
    ] {
        assert_eq!(verdict(&witnessed(pod.clone(), "b", unreleased, leased)), expected);
    }
    let silent = Witness::Silent { message: String::new() };
    assert!(verdict(&ObservedPod { witness: silent, ..pod }).is_err());
}

#[test]
fn a_pod_without_a_process_and_without_anybody_to_ask_does_not_stick_for_ever() {
    let mut pod =
        ObservedPod { witness: Witness::Nobody, ..draining(crashing("a", "v2"), DrainReason::Upgrade) };
    assert_eq!(verdict(&pod), Err(BlockedReason::NoWitness));
    pod.intent.as_mut().unwrap().since = ago(61);
    assert_eq!(verdict(&pod), Ok(Grounds::NotRunning));
}

#[test]
fn the_last_pod_of_a_cluster_scaled_to_zero_is_its_own_witness() {
    let by_itself = witnessed(draining(serving("a", "v1", 0), DrainReason::ScaleDown), "a", 0, Some(0));
    assert_eq!(may_end(&by_itself, &policy(0), LAST, now()), Ok(Grounds::OnlyPod));
    let others_run = Surroundings { is_alone: false, ..LAST };
    assert_eq!(may_end(&by_itself, &policy(0), others_run, now()), Err(BlockedReason::NoWitness));
    let disagrees = witnessed(by_itself, "a", 1, Some(1));
    assert!(may_end(&disagrees, &policy(0), LAST, now()).is_err());
}

#[test]
fn a_single_replica_without_surge_is_its_own_witness_because_no_other_can_come_first() {
    let by_itself = witnessed(draining(serving("a", "v1", 0), DrainReason::Upgrade), "a", 0, Some(0));
    let alone = Surroundings { no_successor_ever: false, is_alone: true, blocks_others: true };
    assert_eq!(may_end(&by_itself, &policy(1), alone, now()), Ok(Grounds::OnlyPod));
    let with_surge = Surroundings { blocks_others: false, ..alone };
    assert_eq!(may_end(&by_itself, &policy(1), with_surge, now()), Err(BlockedReason::NoWitness));
}

#[test]
fn rooms_that_nobody_will_ever_take_are_released_by_the_pods_own_end() {
    let mut pod = draining(serving("a", "v1", 4), DrainReason::ScaleDown);
    pod.report.as_mut().unwrap().blocked = vec![BlockedRooms { reason: "NoSuccessor".to_owned(), rooms: 4 }];
    assert_eq!(may_end(&pod, &policy(0), LAST, now()), Ok(Grounds::NoSuccessor { rooms: 4 }));
    assert!(may_end(&pod, &policy(3), AMONG_OTHERS, now()).is_err());
    pod.report.as_mut().unwrap().blocked[0].rooms = 3;
    assert!(may_end(&pod, &policy(0), LAST, now()).is_err(), "one room is held by something else");
}

#[test]
fn rooms_are_cut_only_where_the_policy_says_so_and_only_after_the_timeout() {
    let terminate = Policy { on_timeout: OnTimeout::Terminate, ..policy(3) };
    let mut pod = draining(serving("a", "v1", 4), DrainReason::Upgrade);
    assert!(may_end(&pod, &terminate, AMONG_OTHERS, now()).is_err());
    pod.intent.as_mut().unwrap().since = ago(1801);
    assert!(may_end(&pod, &policy(3), AMONG_OTHERS, now()).is_err());
    assert_eq!(may_end(&pod, &terminate, AMONG_OTHERS, now()), Ok(Grounds::TimedOut { rooms: Some(4) }));
}
