//! The Services of a cluster: one for callers, one that lists every node.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roomcluster_crds::names;

use super::{Owner, labels};

/// The Service that callers use: pods that take traffic.
#[must_use]
pub fn build_service(owner: &Owner) -> Service {
    let spec =
        ServiceSpec { type_: Some("ClusterIP".to_owned()), ports: Some(vec![grpc_port()]), ..base(owner) };
    Service { metadata: owner.metadata(owner.name().to_owned()), spec: Some(spec), status: None }
}

/// The headless Service that lists every pod, ready or not: a draining pod must still be found by its peers.
#[must_use]
pub fn build_nodes_service(owner: &Owner) -> Service {
    let spec = ServiceSpec {
        type_: Some("ClusterIP".to_owned()),
        cluster_ip: Some("None".to_owned()),
        publish_not_ready_addresses: Some(true),
        ports: Some(vec![grpc_port(), port(names::ADMIN_PORT_NAME, names::ADMIN_PORT, "http")]),
        ..base(owner)
    };
    Service {
        metadata: owner.metadata(names::nodes_service_name(owner.name())),
        spec: Some(spec),
        status: None,
    }
}

fn base(owner: &Owner) -> ServiceSpec {
    ServiceSpec { selector: Some(labels::room_pods(owner.name())), ..ServiceSpec::default() }
}

fn grpc_port() -> ServicePort {
    port(names::GRPC_PORT_NAME, names::GRPC_PORT, "kubernetes.io/h2c")
}

fn port(name: &str, number: i32, app_protocol: &str) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        app_protocol: Some(app_protocol.to_owned()),
        ..ServicePort::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn callers_reach_only_pods_that_take_traffic() {
        let service = build_service(&fixture::owner());
        let spec = service.spec.unwrap();
        assert_eq!(service.metadata.name.as_deref(), Some("lounge"));
        assert_eq!(spec.publish_not_ready_addresses, None);
        assert_eq!(spec.cluster_ip, None);
        let selector = spec.selector.unwrap();
        let selector: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut expected: Vec<String> =
            names::pod_selector("lounge").split(',').map(ToOwned::to_owned).collect();
        expected.sort();
        assert_eq!(selector, expected);
        assert_eq!(spec.ports.unwrap()[0].port, 7400);
    }

    #[test]
    fn peers_find_every_node_even_one_that_drains() {
        let service = build_nodes_service(&fixture::owner());
        let spec = service.spec.unwrap();
        assert_eq!(service.metadata.name.as_deref(), Some("lounge-nodes"));
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
    }
}
