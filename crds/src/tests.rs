//! Facts of the schema, and that the committed copies are what the types say.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// The value at a JSON pointer below the schema of the resource.
fn schema_at(pointer: &str) -> Value {
    let crd = serde_json::to_value(crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    schema.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the schema")).clone()
}

fn smallest() -> Value {
    json!({
        "apiVersion": "roomcluster.dev/v1alpha1",
        "kind": "RoomCluster",
        "metadata": { "name": "lounge" },
        "spec": {
            "template": { "spec": { "containers": [{ "name": "room", "image": "example/dataplane:v2" }] } },
            "database": { "urlSecretRef": { "name": "lounge-db", "key": "url" } },
            "redis": { "urlSecretRef": { "name": "lounge-redis", "key": "url" } },
        },
    })
}

#[test]
fn the_committed_definitions_are_what_the_types_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for copy in [
        "roomclusters.roomcluster.dev.yaml",
        "../charts/roomcluster-operator/files/roomclusters.roomcluster.dev.yaml",
    ] {
        let committed = fs::read_to_string(root.join(copy)).unwrap();
        assert!(
            committed == crd_yaml().unwrap(),
            "crds/{copy} is out of date: write it with `cargo run -p roomcluster-crds --bin crdgen`"
        );
    }
}

#[test]
fn the_smallest_resource_reads_with_the_documented_defaults() {
    let cluster: RoomCluster = serde_json::from_value(smallest()).unwrap();
    let spec = cluster.spec;
    assert_eq!(spec.replicas, 1);
    assert_eq!(spec.revision_history_limit, 10);
    assert!(!spec.paused);
    assert_eq!(spec.outbox, Outbox { mode: OutboxMode::Sidecar, sink_url_secret_ref: None, resources: None });
    assert_eq!(spec.upgrade.kind, UpgradeType::RollingUpdate);
    assert_eq!(spec.upgrade.min_ready_seconds, 5);
    assert_eq!(spec.upgrade.progress_deadline_seconds, 600);
    let rolling = &spec.upgrade.rolling_update;
    assert_eq!(rolling.pod_budget(3), PodBudget { surge_pods: 1, unavailable_pods: 0 });
    assert_eq!((rolling.partition, rolling.max_draining_rooms), (0, 20_000));
    assert_eq!(spec.drain.timeout, DurationText::from_mins(30));
    assert_eq!(spec.drain.on_timeout, OnTimeout::Wait);
    assert_eq!(spec.drain.respond, [DrainReason::Upgrade, DrainReason::ScaleDown, DrainReason::NodeCordon]);
    assert_eq!(spec.grace_seconds(), 2 + 30 + 30 + 10);
}

#[test]
fn a_field_that_is_written_alone_leaves_its_neighbours_at_their_defaults() {
    let mut object = smallest();
    object["spec"]["upgrade"] = json!({ "rollingUpdate": { "maxSurge": "50%" } });
    object["spec"]["shutdown"] = json!({ "timeoutSeconds": 60 });
    let cluster: RoomCluster = serde_json::from_value(object).unwrap();
    assert_eq!(cluster.spec.upgrade.rolling_update.max_surge, PodCount::Percent(50));
    assert_eq!(cluster.spec.upgrade.rolling_update.max_unavailable, PodCount::Number(0));
    assert_eq!(cluster.spec.upgrade.min_ready_seconds, 5);
    assert_eq!(cluster.spec.shutdown.grace_seconds(OutboxMode::InProcess), 2 + 60 + 10);
}

#[test]
fn the_schema_carries_the_same_defaults_as_the_types() {
    for (pointer, default) in [
        ("/spec/properties/replicas/default", json!(1)),
        ("/spec/properties/revisionHistoryLimit/default", json!(10)),
        ("/spec/properties/paused/default", json!(false)),
        ("/spec/properties/outbox/properties/mode/default", json!("Sidecar")),
        ("/spec/properties/drain/default", serde_json::to_value(Drain::default()).unwrap()),
        ("/spec/properties/shutdown/default", serde_json::to_value(Shutdown::default()).unwrap()),
        ("/spec/properties/upgrade/default", serde_json::to_value(Upgrade::default()).unwrap()),
    ] {
        assert_eq!(schema_at(pointer), default, "{pointer}");
    }
}

#[test]
fn only_template_database_and_redis_must_be_written() {
    assert_eq!(schema_at("/spec/required"), json!(["database", "redis", "template"]));
    assert_eq!(schema_at("/spec/properties/template/required"), json!(["spec"]));
}

#[test]
fn the_pod_stays_open_to_fields_that_the_schema_does_not_name() {
    for pointer in ["", "/properties/containers/items", "/properties/initContainers/items"] {
        let pointer = format!(
            "/spec/properties/template/properties/spec{pointer}/x-kubernetes-preserve-unknown-fields"
        );
        assert_eq!(schema_at(&pointer), json!(true), "{pointer}");
    }
}

#[test]
fn null_is_nowhere_a_value_because_it_would_escape_defaults_and_rules() {
    let text = crd_yaml().unwrap();
    assert!(!text.contains("nullable") && !text.contains("- null"));
}

#[test]
fn scale_and_status_are_subresources_with_a_selector_for_autoscalers() {
    let crd = serde_json::to_value(crd()).unwrap();
    assert_eq!(
        crd["spec"]["versions"][0]["subresources"],
        json!({
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        })
    );
}

#[test]
fn kubectl_get_shows_what_a_person_asks_for_during_a_roll() {
    let crd = serde_json::to_value(crd()).unwrap();
    let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
    let shown: Vec<&str> = columns
        .iter()
        .filter(|column| column["priority"].as_i64().unwrap_or(0) == 0)
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(shown, ["Desired", "Ready", "Updated", "Draining", "Rooms", "Phase", "Age"]);
}

#[test]
fn names_are_those_of_the_group_and_the_selector_finds_the_pods() {
    let crd = crd();
    assert_eq!((crd.spec.group.as_str(), crd.spec.versions[0].name.as_str()), (names::GROUP, names::VERSION));
    assert_eq!(crd.spec.names.short_names.as_deref(), Some(&["rcs".to_owned()][..]));
    assert_eq!(
        names::pod_selector("lounge"),
        "roomcluster.dev/cluster=lounge,app.kubernetes.io/component=room"
    );
}

#[test]
fn the_longest_cluster_name_still_makes_valid_names() {
    let cluster = "a".repeat(names::CLUSTER_NAME_MAX_LENGTH);
    for name in [
        names::migration_job_name(&cluster, "0123456789"),
        names::nodes_service_name(&cluster),
        names::token_secret_name(&cluster),
        names::revision_name(&cluster, "0123456789"),
    ] {
        assert!(name.len() <= 63, "{name}");
    }
}

#[test]
fn unknown_counts_are_absent_from_the_status_and_never_zero() {
    let status = serde_json::to_value(RoomClusterStatus::default()).unwrap();
    assert!(status.get("rooms").is_none() && status.get("ledger").is_none());
    assert_eq!(status["replicas"], json!(0));
}
