//! Reads a pod object into what the plan knows of a pod.
//!
//! Pure. A field that Kubernetes has not written yet is read as the state in which the least is known.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;
use roomcluster_crds::names;

use crate::ids::{PodName, PodUid, Revision};
use crate::intent::DrainIntent;
use crate::plan::{Gate, Host, ObservedPod, Readiness, RoomContainer, Trouble, Witness};

/// The pod as the plan sees it, without what its node says. `None`: the object lacks what every stored pod has.
#[must_use]
pub(super) fn observe(pod: &Pod, host: Host, in_endpoints: bool, now: Timestamp) -> Option<ObservedPod> {
    let uid = PodUid::new(pod.metadata.uid.clone()?);
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(names::DRAIN_ANNOTATION));
    let revision = pod.metadata.labels.as_ref().and_then(|all| all.get(names::REVISION_LABEL));
    let ready = condition(pod, "Ready");
    Some(ObservedPod {
        name: PodName::new(pod.metadata.name.clone()?),
        resource_version: pod.metadata.resource_version.clone()?,
        revision: Revision::new(revision.cloned().unwrap_or_default()),
        created_at: pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0),
        terminating_since: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        finished: matches!(phase(pod), "Succeeded" | "Failed"),
        container: room_container(pod),
        trouble: trouble(pod),
        ready: Readiness {
            is_ready: ready.is_some_and(|ready| ready.status == "True"),
            since: ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0),
        },
        gate: match condition(pod, names::ACCEPTING_GATE).map(|gate| gate.status.as_str()) {
            Some("True") => Gate::Open,
            Some(_) => Gate::Closed,
            None => Gate::Missing,
        },
        in_endpoints,
        host,
        intent: annotation.and_then(|text| DrainIntent::parse(text, &uid)),
        report: None,
        sample: None,
        witness: Witness::NotAsked,
        uid,
    })
}

/// The address of the pod, once it has one.
#[must_use]
pub(super) fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// The Kubernetes node that the pod was scheduled to.
#[must_use]
pub(super) fn host_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn room_status(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == names::ROOM_CONTAINER)
}

fn room_container(pod: &Pod) -> RoomContainer {
    let Some(status) = room_status(pod) else { return RoomContainer::NeverStarted };
    let state = status.state.as_ref();
    let restarted = status.restart_count > 0;
    if state.is_some_and(|state| state.running.is_some()) {
        return RoomContainer::Running { restarted };
    }
    let has_run = restarted
        || state.is_some_and(|state| state.terminated.is_some())
        || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some() || last.running.is_some());
    if has_run {
        let waiting =
            state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.as_deref());
        RoomContainer::Down { backing_off: waiting.is_some_and(|reason| reason != "ContainerCreating") }
    } else {
        RoomContainer::NeverStarted
    }
}

/// The first thing that Kubernetes says is wrong: of a container, of an init container, of scheduling.
#[must_use]
pub fn trouble(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    containers
        .chain(init)
        .find_map(container_trouble)
        .or_else(|| unschedulable(pod))
        .or_else(|| whole_pod(pod))
}

fn container_trouble(status: &ContainerStatus) -> Option<Trouble> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone().filter(|r| r != "ContainerCreating" && r != "PodInitializing")?;
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let ended = last.map(|last| {
        let message = last.message.as_deref().map(|text| format!(": {}", text.trim())).unwrap_or_default();
        format!("; it last ended with exit code {}{message}", last.exit_code)
    });
    let message = waiting.message.clone().unwrap_or_default();
    Some(Trouble { reason, message: format!("{message}{}", ended.unwrap_or_default()) })
}

fn unschedulable(pod: &Pod) -> Option<Trouble> {
    let scheduled = condition(pod, "PodScheduled").filter(|condition| condition.status == "False")?;
    Some(Trouble {
        reason: scheduled.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()),
        message: scheduled.message.clone().unwrap_or_default(),
    })
}

fn whole_pod(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.clone()?;
    Some(Trouble { reason, message: status.message.clone().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> ObservedPod {
        let pod: Pod = serde_norway::from_str(yaml).unwrap();
        observe(&pod, Host::Usable, false, Timestamp::UNIX_EPOCH).unwrap()
    }

    const META: &str = r#"
metadata:
  name: lounge-x7
  uid: 6f-1
  resourceVersion: "12"
  labels: {roomcluster.dev/revision: abc}
  annotations:
    roomcluster.dev/drain: '{"uid":"6f-1","epoch":2,"reasons":["Upgrade"],"since":"2026-01-01T00:00:00Z"}'
"#;

    #[test]
    fn a_pod_that_has_no_status_has_never_started() {
        let pod = read(META);
        assert_eq!(pod.container, RoomContainer::NeverStarted);
        assert_eq!(pod.gate, Gate::Missing);
        assert!(!pod.ready.is_ready);
        assert!(pod.is_draining());
        assert_eq!(pod.revision, Revision::new("abc"));
    }

    #[test]
    fn the_room_container_tells_whether_a_process_runs_has_run_or_never_did() {
        let status = |state: &str| {
            read(&format!(
                "{META}status:\n  containerStatuses:\n  - {{name: outbox, image: i, imageID: x, ready: true, restartCount: 0, state: {{running: {{}}}}}}\n  - {{name: room, image: i, imageID: x, ready: false, {state}}}\n"
            ))
        };
        let pull =
            status("restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: no such image}}");
        assert_eq!(pull.container, RoomContainer::NeverStarted);
        assert_eq!(pull.trouble.unwrap().reason, "ImagePullBackOff");
        let up = status("restartCount: 1, state: {running: {}}");
        assert_eq!(up.container, RoomContainer::Running { restarted: true });
        let crash = status(
            "restartCount: 3, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 64}}",
        );
        assert_eq!(crash.container, RoomContainer::Down { backing_off: true });
        assert!(crash.trouble.unwrap().message.contains("64"));
        let ended = status("restartCount: 0, state: {terminated: {exitCode: 1}}");
        assert_eq!(ended.container, RoomContainer::Down { backing_off: false });
    }

    #[test]
    fn a_pod_that_cannot_be_scheduled_says_why() {
        let pod = read(&format!(
            "{META}status:\n  conditions:\n  - {{type: PodScheduled, status: 'False', reason: Unschedulable, message: 0/3 nodes are available}}\n"
        ));
        assert_eq!(pod.trouble.unwrap().message, "0/3 nodes are available");
    }
}
