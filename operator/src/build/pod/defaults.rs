//! What a pod gets where the user says nothing.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
    TopologySpreadConstraint,
};
use roomcluster_crds::names;

use super::super::labels;

/// Fills in what the user left out.
pub(in super::super) fn apply(spec: &mut PodSpec, cluster: &str) {
    if spec.affinity.is_none() && spec.topology_spread_constraints.is_none() {
        let spread = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"];
        spec.topology_spread_constraints = Some(spread.map(|key| prefer_spread(key, cluster)).into());
    }
    apply_security(spec);
    // Variables for every Service of the namespace could shadow what the data plane reads.
    spec.enable_service_links.get_or_insert(false);
    // The data plane never talks to the API server.
    spec.automount_service_account_token.get_or_insert(false);
}

/// Fits the restricted Pod Security Standard. Containers of the user's own are left as they are.
pub(in super::super) fn apply_security(spec: &mut PodSpec) {
    spec.security_context.get_or_insert_with(|| PodSecurityContext {
        run_as_non_root: Some(true),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    });
    let init_containers = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init_containers).filter(|container| is_ours(container))
    {
        container.security_context.get_or_insert_with(|| SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        });
    }
}

fn is_ours(container: &Container) -> bool {
    [names::ROOM_CONTAINER, names::OUTBOX_CONTAINER, names::MIGRATE_CONTAINER]
        .contains(&container.name.as_str())
}

/// Pods of one revision apart from each other, if the cluster has room for that; tainted nodes do not count.
fn prefer_spread(topology_key: &str, cluster: &str) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        topology_key: topology_key.to_owned(),
        max_skew: 1,
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(labels::room_pod_selector(cluster)),
        match_label_keys: Some(vec![names::REVISION_LABEL.to_owned()]),
        node_taints_policy: Some("Honor".to_owned()),
        ..TopologySpreadConstraint::default()
    }
}
