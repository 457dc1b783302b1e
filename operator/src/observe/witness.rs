//! Asks other pods what the database holds about a pod that may be about to end.
//!
//! Asked only where the answer decides something. Who answers must be whom we asked: an address may meanwhile
//! belong to another pod.

use std::collections::HashMap;

use futures::{StreamExt, stream};

use crate::ids::{PodName, PodUid};
use crate::plan::{ObservedPod, Witness};

use super::node_api::NodeApi;

/// Pods asked one after the other before the answer counts as missing for this reconcile.
const MAX_WITNESSES: usize = 3;
/// Pods about which others are asked at the same time.
const ASKED_AT_ONCE: usize = 8;

/// Fills in the witness of each pod whose end depends on one.
pub(super) async fn ask(pods: &mut [ObservedPod], nodes: &HashMap<PodUid, NodeApi>) {
    let questions: Vec<_> = (0..pods.len()).filter(|index| depends_on_witness(&pods[*index])).collect();
    let asked = questions.into_iter().map(|index| {
        let pod = &pods[index];
        let others = candidates(pod, pods, nodes);
        // Where there is nobody else, its own answer is on offer; the plan decides whether that is enough.
        let others = if others.is_empty() { own(pod, nodes) } else { others };
        let someone_runs =
            pods.iter().any(|other| other.uid != pod.uid && other.is_running() && !other.is_terminating());
        let name = pod.name.clone();
        async move { (index, question(&name, others, someone_runs).await) }
    });
    let answers: Vec<_> = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).collect().await;
    for (index, witness) in answers {
        pods[index].witness = witness;
    }
}

/// A pod that drains and says that it is empty, or that has no process to say anything.
fn depends_on_witness(pod: &ObservedPod) -> bool {
    let is_leaving = (pod.is_draining() || pod.finished) && !pod.is_terminating();
    is_leaving && (!pod.is_running() || pod.rooms_hint() == Some(0))
}

/// Pods that answered in this reconcile, those that accept rooms first.
fn candidates(
    pod: &ObservedPod,
    pods: &[ObservedPod],
    nodes: &HashMap<PodUid, NodeApi>,
) -> Vec<(PodName, NodeApi)> {
    let mut others: Vec<_> = pods
        .iter()
        .filter(|other| other.uid != pod.uid && other.is_running() && !other.is_terminating())
        .filter_map(|other| Some((other.own_report()?.accepting, other)))
        .collect();
    others.sort_by_key(|(accepting, _)| !accepting);
    let known = others
        .into_iter()
        .filter_map(|(_, other)| Some((other.name.clone(), nodes.get(&other.uid)?.clone())));
    known.take(MAX_WITNESSES).collect()
}

fn own(pod: &ObservedPod, nodes: &HashMap<PodUid, NodeApi>) -> Vec<(PodName, NodeApi)> {
    nodes.get(&pod.uid).map(|node| (pod.name.clone(), node.clone())).into_iter().collect()
}

async fn question(about: &PodName, others: Vec<(PodName, NodeApi)>, someone_runs: bool) -> Witness {
    let mut witness = match someone_runs {
        true => Witness::Silent { message: "no other pod answered".to_owned() },
        false => Witness::Nobody,
    };
    for (name, node) in others {
        witness = match node.rooms_owned_by(about).await {
            Ok(answer) if answer.by == name => return Witness::Answer(answer),
            Ok(answer) => {
                Witness::Silent { message: format!("{} answered at the address of {name}", answer.by) }
            }
            Err(error) => Witness::Silent { message: format!("{name}: {error}") },
        };
    }
    witness
}
