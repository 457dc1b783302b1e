//! One test for each rule of the plan.

use std::collections::BTreeSet;

use roomcluster_crds::DrainReason;

use super::fixture::{
    ago, blocked, cluster, crashing, draining, gist, now, planned, policy, rev, serving, unpullable,
    witnessed,
};
use super::*;
use crate::ids::DrainEpoch;

fn three_old() -> Vec<ObservedPod> {
    vec![serving("a", "v1", 30), serving("b", "v1", 10), serving("c", "v1", 20)]
}

fn with(mut pods: Vec<ObservedPod>, pod: ObservedPod) -> Vec<ObservedPod> {
    pods.push(pod);
    pods
}

#[test]
fn an_empty_cluster_gets_all_its_pods_at_once() {
    let plan = planned(&cluster("v2", []), &policy(3));
    assert_eq!(gist(&plan), ["create v2", "create v2", "create v2"]);
}

#[test]
fn a_settled_cluster_is_left_alone() {
    let plan = planned(&cluster("v2", [serving("a", "v2", 1), serving("b", "v2", 1)]), &policy(2));
    assert_eq!(plan.steps, []);
    assert_eq!(plan.blocked, []);
    assert_eq!(plan.requeue_after, REQUEUE_IDLE);
}

#[test]
fn a_roll_begins_with_a_surge_pod_and_drains_nothing_before_it_is_available() {
    let plan = planned(&cluster("v2", three_old()), &policy(3));
    assert_eq!(gist(&plan), ["create v2"]);
    let starting = ObservedPod { trouble: None, ..unpullable("n", "v2") };
    let plan = planned(&cluster("v2", with(three_old(), starting)), &policy(3));
    assert_eq!(gist(&plan), [""; 0]);
    assert!(matches!(blocked(&plan, "b"), Some(BlockedReason::TargetNotAvailable { trouble: None })));
}

#[test]
fn a_new_pod_counts_only_after_min_ready_and_while_its_node_accepts() {
    let mut fresh = serving("n", "v2", 0);
    fresh.ready.since = Some(ago(4));
    let mut refusing = serving("n", "v2", 0);
    refusing.report.as_mut().unwrap().accepting = false;
    let mut unreachable = serving("n", "v2", 0);
    unreachable.report = None;
    for pod in [fresh, refusing, unreachable] {
        assert_eq!(gist(&planned(&cluster("v2", with(three_old(), pod)), &policy(3))), [""; 0]);
    }
}

#[test]
fn the_old_pod_with_the_fewest_rooms_is_drained_first_and_one_at_a_time() {
    let plan = planned(&cluster("v2", with(three_old(), serving("n", "v2", 0))), &policy(3));
    assert_eq!(gist(&plan), ["drain b"]);
    let pods = vec![
        serving("a", "v1", 30),
        draining(serving("b", "v1", 9), DrainReason::Upgrade),
        serving("c", "v1", 20),
        serving("n", "v2", 0),
    ];
    let plan = planned(&cluster("v2", pods), &policy(3));
    assert_eq!(gist(&plan), [""; 0]);
    assert_eq!(blocked(&plan, "c"), Some(&BlockedReason::TooFewAvailable { available: 3, required: 3 }));
    assert!(matches!(blocked(&plan, "b"), Some(BlockedReason::HoldsRooms { rooms: 9, .. })));
}

#[test]
fn an_emptied_pod_is_ended_and_its_successor_created_only_when_it_is_on_its_way_out() {
    let emptied = witnessed(draining(serving("b", "v1", 0), DrainReason::Upgrade), "a", 0, Some(0));
    let mut pods = vec![serving("a", "v1", 30), emptied, serving("c", "v1", 20), serving("n", "v2", 10)];
    assert_eq!(gist(&planned(&cluster("v2", pods.clone()), &policy(3))), ["end b"]);
    pods[1].terminating_since = Some(now());
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(3))), ["create v2"]);
}

#[test]
fn the_surge_pod_takes_the_place_of_the_last_old_pod() {
    let last = witnessed(draining(serving("c", "v1", 0), DrainReason::Upgrade), "n1", 0, Some(0));
    let new = [serving("n1", "v2", 20), serving("n2", "v2", 20), serving("n3", "v2", 20)];
    assert_eq!(gist(&planned(&cluster("v2", with(new.to_vec(), last)), &policy(3))), ["end c"]);
    assert_eq!(gist(&planned(&cluster("v2", new), &policy(3))), [""; 0]);
}

#[test]
fn a_bad_image_costs_the_surge_pod_only_and_is_named() {
    for bad in [unpullable("n", "v2"), crashing("n", "v2")] {
        let word = bad.trouble.as_ref().unwrap().reason.clone();
        let roomy = Policy { max_unavailable: 1, ..policy(3) };
        for policy in [policy(3), roomy] {
            let plan = planned(&cluster("v2", with(three_old(), bad.clone())), &policy);
            assert_eq!(gist(&plan), [""; 0]);
            let Some(BlockedReason::TargetNotAvailable { trouble: Some(trouble) }) = blocked(&plan, "a")
            else {
                panic!("{plan:?}")
            };
            assert!(trouble.contains(&word) && trouble.contains("pod n"), "{trouble}");
        }
    }
}

#[test]
fn a_corrected_template_replaces_the_broken_pod_by_itself() {
    for bad in [unpullable("n", "bad"), crashing("n", "bad")] {
        let plan = planned(&cluster("v2", with(three_old(), bad.clone())), &policy(3));
        assert_eq!(gist(&plan), ["drain n"]);
        let leaving = witnessed(draining(bad, DrainReason::Upgrade), "a", 0, Some(0));
        let plan = planned(&cluster("v2", with(three_old(), leaving)), &policy(3));
        assert_eq!(gist(&plan), ["end n"]);
    }
}

#[test]
fn broken_pods_of_the_proven_revision_are_not_given_up_for_an_unproven_one() {
    let pods = vec![crashing("a", "v1"), crashing("b", "v1"), crashing("c", "v1"), crashing("n", "v2")];
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(3))), [""; 0]);
    let pods = vec![crashing("a", "v1"), crashing("b", "v1"), crashing("c", "v1"), serving("n", "v2", 0)];
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(3))), ["drain a"]);
}

#[test]
fn without_surge_a_pod_makes_room_first() {
    let policy = Policy { max_surge: 0, max_unavailable: 1, ..policy(3) };
    assert_eq!(gist(&planned(&cluster("v2", three_old()), &policy)), ["drain b"]);
    let pods = vec![serving("a", "v1", 30), serving("c", "v1", 20), unpullable("n", "v2")];
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy)), [""; 0]);
}

#[test]
fn the_rooms_budget_limits_further_pods_and_never_the_first() {
    let wide = Policy { max_surge: 3, max_draining_rooms: 35, ..policy(3) };
    let new = [serving("n1", "v2", 0), serving("n2", "v2", 0), serving("n3", "v2", 0)];
    let mut pods = new.to_vec();
    pods.extend([serving("a", "v1", 500), serving("b", "v1", 400)]);
    assert_eq!(gist(&planned(&cluster("v2", pods), &wide)), ["drain b"]);
    let mut pods = new.to_vec();
    pods.extend([draining(serving("a", "v1", 20), DrainReason::Upgrade), serving("b", "v1", 10)]);
    assert_eq!(gist(&planned(&cluster("v2", pods.clone()), &wide)), ["drain b"]);
    pods[4] = serving("b", "v1", 16);
    let plan = planned(&cluster("v2", pods.clone()), &wide);
    assert_eq!(blocked(&plan, "b"), Some(&BlockedReason::RoomBudget { moving: 20, limit: 35 }));
    pods[3].sample = None;
    pods[3].report = None;
    assert_eq!(blocked(&planned(&cluster("v2", pods), &wide), "b"), Some(&BlockedReason::RoomsUnknown));
}

#[test]
fn a_partition_keeps_its_pods_and_gives_back_one_that_drains_too_much() {
    let kept = Policy { partition: 2, ..policy(3) };
    let plan = planned(&cluster("v2", with(three_old(), serving("n", "v2", 0))), &kept);
    assert_eq!(gist(&plan), ["drain b"]);
    let pods = vec![serving("a", "v1", 30), serving("c", "v1", 20), serving("n", "v2", 10)];
    assert_eq!(gist(&planned(&cluster("v2", pods.clone()), &kept)), [""; 0]);
    assert_eq!(
        gist(&planned(&cluster("v2", pods[1..].to_vec()), &kept)),
        ["create v1"],
        "one old pod vanished"
    );
    let pods = vec![
        draining(serving("a", "v1", 30), DrainReason::Upgrade),
        serving("c", "v1", 20),
        serving("n", "v2", 10),
    ];
    assert_eq!(gist(&planned(&cluster("v2", pods), &kept)), ["withdraw a"]);
}

#[test]
fn a_paused_cluster_drains_nothing_takes_back_what_drains_and_replaces_what_is_lost() {
    let paused = Policy { upgrade: UpgradeMode::Paused, ..policy(3) };
    let plan = planned(&cluster("v2", with(three_old(), serving("n", "v2", 0))), &paused);
    assert_eq!(gist(&plan), [""; 0]);
    assert_eq!(blocked(&plan, ""), Some(&BlockedReason::Paused));
    let pods = vec![serving("a", "v1", 1), draining(serving("b", "v1", 1), DrainReason::Upgrade)];
    assert_eq!(gist(&planned(&cluster("v2", pods), &paused)), ["create v1", "withdraw b"]);
}

#[test]
fn on_delete_waits_for_a_deletion_and_then_creates_the_target() {
    let on_delete = Policy { upgrade: UpgradeMode::OnDelete, ..policy(3) };
    assert_eq!(gist(&planned(&cluster("v2", three_old()), &on_delete)), [""; 0]);
    let mut pods = three_old();
    pods[0].terminating_since = Some(now());
    assert_eq!(gist(&planned(&cluster("v2", pods), &on_delete)), ["create v2"]);
}

#[test]
fn scaling_down_drains_the_fewest_rooms_and_keeps_to_its_choice() {
    let pods = vec![serving("a", "v2", 30), serving("b", "v2", 10), serving("c", "v2", 20)];
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(2))), ["drain b"]);
    let pods = vec![
        serving("a", "v2", 3),
        draining(serving("b", "v2", 10), DrainReason::ScaleDown),
        serving("c", "v2", 20),
    ];
    assert_eq!(gist(&planned(&cluster("v2", pods.clone()), &policy(2))), [""; 0]);
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(3))), ["withdraw b"], "scaled up again");
}

#[test]
fn a_stuck_roll_can_be_scaled_down() {
    let mut pods = three_old();
    pods.extend([serving("d", "v1", 5), serving("e", "v1", 50), unpullable("n", "v2")]);
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(3))), ["drain d"]);
}

#[test]
fn scaling_to_zero_drains_every_pod_in_turn_without_waiting_for_the_last_one() {
    let pods = vec![draining(serving("a", "v2", 30), DrainReason::ScaleDown), serving("b", "v2", 10)];
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(0))), ["drain b"]);
    assert_eq!(gist(&planned(&cluster("v2", three_old()), &policy(0))), ["drain b"]);
}

#[test]
fn a_roll_back_in_mid_roll_keeps_the_old_pods_and_takes_their_drain_back() {
    let pods = vec![
        draining(serving("a", "v1", 30), DrainReason::Upgrade),
        serving("b", "v1", 10),
        serving("n1", "v2", 10),
        serving("n2", "v2", 10),
    ];
    let plan = planned(&cluster("v1", pods), &policy(3));
    assert_eq!(gist(&plan), ["withdraw a"]);
    let Some(Step::WithdrawDrain { intent, .. }) =
        plan.steps.iter().find(|step| matches!(step, Step::WithdrawDrain { .. }))
    else {
        panic!("{plan:?}")
    };
    assert_eq!(intent.epoch, DrainEpoch::new(3), "an epoch never falls, also not over a withdrawal");
    assert_eq!(intent.reasons, BTreeSet::new());
}

#[test]
fn a_pod_on_a_cordoned_host_is_replaced_first_and_then_drained() {
    let mut pods = vec![serving("a", "v2", 30), serving("b", "v2", 10), serving("c", "v2", 20)];
    pods[0].host = Host::Cordoned;
    assert_eq!(gist(&planned(&cluster("v2", pods.clone()), &policy(3))), ["create v2"]);
    let pods = with(pods, serving("d", "v2", 0));
    let plan = planned(&cluster("v2", pods.clone()), &policy(3));
    assert_eq!(gist(&plan), ["drain a"]);
    let deaf = Policy { respond: BTreeSet::from([DrainReason::Upgrade]), ..policy(4) };
    let plan = planned(&cluster("v2", pods), &deaf);
    assert_eq!(gist(&plan), [""; 0]);
    assert_eq!(blocked(&plan, "a"), Some(&BlockedReason::NotAnswered { reason: "NodeCordon" }));
}

#[test]
fn an_uncordoned_host_takes_the_drain_back() {
    let pods = vec![draining(serving("a", "v2", 30), DrainReason::NodeCordon), serving("b", "v2", 1)];
    assert_eq!(gist(&planned(&cluster("v2", pods), &policy(2))), ["withdraw a"]);
}

#[test]
fn pods_that_are_on_their_way_out_or_lost_are_replaced_at_once() {
    let mut leaving = serving("a", "v2", 30);
    leaving.terminating_since = Some(ago(3600));
    let mut lost = serving("b", "v2", 10);
    lost.host = Host::Lost;
    let plan = planned(&cluster("v2", [leaving, lost, serving("c", "v2", 1)]), &policy(3));
    assert_eq!(gist(&plan), ["create v2", "create v2"]);
    assert!(
        plan.steps
            .iter()
            .any(|s| matches!(s, Step::SetGate { pod, open: false } if pod.name.as_str() == "a"))
    );
}

#[test]
fn a_pod_that_has_finished_is_replaced_and_cleared_away() {
    let mut evicted = crashing("a", "v2");
    evicted.finished = true;
    let evicted = witnessed(evicted, "b", 4, Some(0));
    let plan = planned(&cluster("v2", [evicted, serving("b", "v2", 1)]), &policy(2));
    assert_eq!(gist(&plan), ["create v2", "end a"]);
}

#[test]
fn a_refused_template_or_a_missing_migration_touches_nothing() {
    let mut observed = cluster("v1", three_old());
    observed.pending = Some(PendingRevision {
        revision: rev("v2"),
        why: PendingReason::TemplateInvalid {
            message: "spec.containers[0].image: Required value".to_owned(),
        },
    });
    for pod in &mut observed.pods {
        pod.report.as_mut().unwrap().target = Some(rev("v1"));
    }
    let plan = planned(&observed, &policy(3));
    assert_eq!(plan.steps, []);
    assert_eq!(blocked(&plan, "").unwrap().name(), "TemplateInvalid");
    observed.target = None;
    observed.pods.clear();
    assert_eq!(planned(&observed, &policy(3)).steps, []);
}

#[test]
fn a_new_node_is_told_to_serve_and_its_gate_opens_only_when_it_says_that_it_accepts() {
    let mut new = serving("n", "v2", 0);
    new.gate = Gate::Missing;
    let report = new.report.as_mut().unwrap();
    (report.epoch, report.order, report.accepting) = (DrainEpoch::new(0), None, false);
    let plan = planned(&cluster("v2", [new.clone()]), &policy(1));
    let [Step::SetOrder { order, .. }] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!((order.epoch, order.order), (DrainEpoch::FIRST, Order::Serve));
    assert_eq!((order.target.clone(), order.target_generation), (Some(rev("v2")), 7));
    let report = new.report.as_mut().unwrap();
    (report.epoch, report.order, report.accepting) = (DrainEpoch::FIRST, Some(Order::Serve), true);
    let plan = planned(&cluster("v2", [new]), &policy(1));
    assert!(matches!(plan.steps.as_slice(), [Step::SetGate { open: true, .. }]), "{plan:?}");
}

#[test]
fn a_node_that_has_restarted_is_told_its_standing_order_again_and_its_gate_is_closed_meanwhile() {
    let mut pod = serving("a", "v2", 0);
    let report = pod.report.as_mut().unwrap();
    (report.epoch, report.order, report.accepting) = (DrainEpoch::new(0), None, false);
    let plan = planned(&cluster("v2", [pod.clone()]), &policy(1));
    assert!(
        matches!(plan.steps.as_slice(), [Step::SetGate { open: false, .. }, Step::SetOrder { .. }]),
        "{plan:?}"
    );
    let mut pod = draining(pod, DrainReason::ScaleDown);
    let report = pod.report.as_mut().unwrap();
    (report.epoch, report.order) = (DrainEpoch::new(0), None);
    let plan = planned(&cluster("v2", [pod, serving("b", "v2", 0)]), &policy(1));
    let [Step::SetOrder { order, .. }] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!((order.epoch, order.order), (DrainEpoch::new(2), Order::Evacuate));
}

#[test]
fn a_new_target_is_told_to_every_node() {
    let plan = planned(&cluster("v3", [serving("a", "v3", 0), serving("b", "v3", 0)]), &policy(2));
    let orders = plan.steps.iter().filter(|step| matches!(step, Step::SetOrder { .. })).count();
    assert_eq!(orders, 2);
}

#[test]
fn an_order_whose_annotation_was_lost_gets_a_higher_epoch() {
    let mut pod = draining(serving("a", "v2", 4), DrainReason::Upgrade);
    pod.intent = None;
    let plan = planned(&cluster("v2", [pod]), &policy(1));
    let [Step::WithdrawDrain { intent, .. }] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!(intent.epoch, DrainEpoch::new(3));
}

#[test]
fn a_node_that_cannot_be_asked_keeps_its_gate() {
    let mut pod = serving("a", "v2", 4);
    pod.report = None;
    pod.sample = None;
    assert_eq!(planned(&cluster("v2", [pod]), &policy(1)).steps, []);
}
