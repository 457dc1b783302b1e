//! The PodDisruptionBudget that refuses every eviction.
//!
//! Rooms leave before a pod ends, so nobody else may end one. With the scale subresource and a surge pod a
//! budget by maxUnavailable, or by a percentage, would allow the eviction of a pod that holds rooms;
//! only a number that no cluster reaches refuses always. The operator drains on cordon and then deletes.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roomcluster_crds::names;

use super::{Owner, labels};

/// The budget of a cluster.
#[must_use]
pub fn build_disruption_budget(owner: &Owner) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: owner.metadata(names::disruption_budget_name(owner.name())),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::MAX)),
            selector: Some(labels::room_pod_selector(owner.name())),
            unhealthy_pod_eviction_policy: Some("IfHealthyBudget".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn no_number_of_pods_satisfies_the_budget_so_no_eviction_is_allowed() {
        let budget = build_disruption_budget(&fixture::owner());
        let spec = budget.spec.unwrap();
        assert_eq!(budget.metadata.name.as_deref(), Some("lounge-rooms"));
        assert_eq!(spec.min_available, Some(IntOrString::Int(2_147_483_647)));
        assert_eq!(spec.max_unavailable, None);
        assert_eq!(spec.unhealthy_pod_eviction_policy.as_deref(), Some("IfHealthyBudget"));
    }
}
