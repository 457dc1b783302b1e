//! What people and autoscalers read.

use k8s_openapi::jiff::SignedDuration;
use roomcluster_crds::{DrainReason, Phase, PodPhase};

use super::*;
use crate::plan::fixture::{ago, cluster, draining, now, policy, rev, serving, unpullable, witnessed};
use crate::plan::{Grounds, PendingReason, PendingRevision, UpgradeMode, plan};

fn report_at(
    observed: &Observed,
    policy: &Policy,
    taken: &[Step],
    before: &RoomClusterStatus,
    now: Timestamp,
) -> RoomClusterStatus {
    let plan = plan(observed, policy, now);
    let facts =
        Facts { cluster: "lounge", generation: 7, observed, policy, plan: &plan, taken, refused: None, now };
    status(&facts, before)
}

fn report(observed: &Observed, policy: &Policy) -> RoomClusterStatus {
    report_at(observed, policy, &[], &RoomClusterStatus::default(), now())
}

fn condition<'a>(status: &'a RoomClusterStatus, kind: &str) -> (&'a str, &'a str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (&condition.status, &condition.reason)
}

fn in_mid_roll() -> Observed {
    cluster(
        "v2",
        [
            draining(serving("a", "v1", 9), DrainReason::Upgrade),
            serving("b", "v1", 20),
            serving("c", "v1", 30),
            serving("n", "v2", 1),
        ],
    )
}

#[test]
fn an_autoscaler_counts_neither_surge_pods_nor_pods_that_leave() {
    let status = report(&in_mid_roll(), &policy(3));
    assert_eq!((status.replicas, status.updated_replicas, status.draining_replicas), (3, 1, 1));
    assert_eq!(status.selector.unwrap(), names::pod_selector("lounge"));
}

#[test]
fn a_roll_says_which_pod_is_awaited_and_why() {
    let status = report(&in_mid_roll(), &policy(3));
    assert_eq!(status.phase, Some(Phase::Rolling));
    assert_eq!(status.message.as_deref(), Some("1 of 3 pods updated; pod a waits: it holds 9 rooms"));
    let drain = status.pods[0].drain.clone().unwrap();
    assert_eq!((drain.remaining, drain.blocked_by.as_deref()), (Some(9), Some("HoldsRooms")));
    assert_eq!(condition(&status, "Draining"), ("True", "PodsDraining"));
    assert_eq!(condition(&status, "Progressing"), ("True", "Rolling"));
}

#[test]
fn an_unknown_count_is_absent_and_not_zero() {
    let mut observed = in_mid_roll();
    assert_eq!(report(&observed, &policy(3)).rooms, Some(60));
    observed.pods[1].report = None;
    observed.pods[1].sample = None;
    let status = report(&observed, &policy(3));
    assert_eq!(status.rooms, None);
    assert_eq!(status.pods[1].rooms, None);
}

#[test]
fn the_current_revision_follows_only_when_every_pod_has_the_target_and_is_available() {
    let settled = cluster("v2", [serving("a", "v2", 0), serving("b", "v2", 0)]);
    assert_eq!(report(&settled, &policy(2)).current_revision.as_deref(), Some("v2"));
    assert_eq!(report(&settled, &policy(2)).phase, Some(Phase::Ready));
    assert_eq!(report(&settled, &policy(3)).current_revision.as_deref(), Some("v1"));
    assert_eq!(report(&in_mid_roll(), &policy(3)).current_revision.as_deref(), Some("v1"));
}

#[test]
fn a_bad_image_is_named_while_the_rest_stays_available() {
    let pods = [serving("a", "v1", 1), serving("b", "v1", 1), unpullable("n", "v2")];
    let status = report(&cluster("v2", pods), &policy(2));
    assert_eq!(status.phase, Some(Phase::Degraded));
    assert_eq!(status.message.as_deref(), Some("pod n: ImagePullBackOff: no such image"));
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(condition(&status, "Degraded"), ("True", "PodFailing"));
}

#[test]
fn the_deadline_counts_for_pods_that_do_not_come_up_and_not_for_rooms_that_take_their_time() {
    let mut stuck = unpullable("n", "v2");
    stuck.created_at = ago(601);
    stuck.ready.since = Some(ago(601));
    let status = report(&cluster("v2", [serving("a", "v1", 1), stuck]), &policy(1));
    assert_eq!(condition(&status, "Progressing"), ("False", "ProgressDeadlineExceeded"));
    let mut observed = in_mid_roll();
    observed.pods[0].intent.as_mut().unwrap().since = ago(7200);
    assert_eq!(condition(&report(&observed, &policy(3)), "Progressing"), ("True", "Rolling"));
}

#[test]
fn a_refused_template_and_a_failed_migration_stop_progress_in_the_words_of_who_refused() {
    for (why, reason) in [
        (PendingReason::TemplateInvalid { message: "no such field".to_owned() }, "TemplateInvalid"),
        (
            PendingReason::MigrationFailed { job: "j".to_owned(), message: "no such field".to_owned() },
            "MigrationFailed",
        ),
    ] {
        let mut observed = cluster("v1", [serving("a", "v1", 1)]);
        observed.pending = Some(PendingRevision { revision: rev("v2"), why });
        let status = report(&observed, &policy(1));
        assert_eq!(condition(&status, "Progressing"), ("False", reason));
        assert!(status.message.unwrap().contains("no such field"));
        assert_eq!(status.update_revision.as_deref(), Some("v2"));
    }
}

#[test]
fn disagreement_between_a_pod_and_the_database_is_a_condition_that_names_the_pod() {
    let differs = witnessed(draining(serving("a", "v1", 0), DrainReason::Upgrade), "b", 3, Some(3));
    let status = report(&cluster("v2", [differs, serving("b", "v2", 0)]), &policy(1));
    assert_eq!(condition(&status, "LeaseViewConsistent"), ("False", "CountsDiffer"));
    assert_eq!(condition(&status, "LeaseStoreReachable"), ("True", "Answered"));
    assert_eq!(status.pods[0].phase, PodPhase::Empty);
}

#[test]
fn times_change_only_with_what_they_are_the_time_of() {
    let first = report(&in_mid_roll(), &policy(3));
    let later = now().checked_add(SignedDuration::from_secs(60)).unwrap();
    let mut observed = in_mid_roll();
    observed.pods[0].sample.as_mut().unwrap().rooms = 8;
    observed.pods[0].report.as_mut().unwrap().rooms = 8;
    let second = report_at(&observed, &policy(3), &[], &first, later);
    assert_ne!(second.message, first.message, "eight rooms are left");
    assert_eq!(second.since, first.since, "the same pod is awaited for the same reason");
    assert_eq!(second.conditions[0].last_transition_time, first.conditions[0].last_transition_time);
    let paused = Policy { upgrade: UpgradeMode::Paused, ..policy(3) };
    assert_eq!(report_at(&observed, &paused, &[], &second, later).since, Some(Time(later)));
}

#[test]
fn the_ledger_adds_up_what_left_by_itself_by_force_and_by_accident() {
    let ended = draining(serving("a", "v1", 9), DrainReason::Upgrade);
    let end = |grounds| [Step::EndPod { pod: (&ended).into(), grounds }];
    let observed = cluster("v2", [ended.clone(), serving("b", "v1", 5)]);
    let first = report_at(&observed, &policy(2), &end(Grounds::Empty), &RoomClusterStatus::default(), now());
    assert_eq!(first.ledger.unwrap().released, 9);
    let forced = end(Grounds::TimedOut { rooms: Some(4) });
    let second = report_at(&observed, &policy(2), &forced, &first, now());
    let ledger = second.ledger.unwrap();
    assert_eq!((ledger.released, ledger.forced, ledger.lost), (14, 4, 0));
    let vanished = cluster("v2", [ended]);
    assert_eq!(report_at(&vanished, &policy(2), &[], &second, now()).ledger.unwrap().lost, 5);
    let next_roll = Observed { target: Some(rev("v3")), ..observed };
    assert_eq!(report_at(&next_roll, &policy(2), &[], &second, now()).ledger, None);
}
