//! What a pod carries, from birth on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, Probe};
use roomcluster_crds::{OutboxMode, SecretKeyRef, names};
use serde_json::{Value, json};

use super::super::{Recipe, build_controller_revision, fixture, read_controller_revision};
use super::build_pod;

type Edit = fn(&mut Recipe);

fn pod(edit: impl FnOnce(&mut Recipe)) -> Pod {
    let mut recipe = fixture::recipe();
    edit(&mut recipe);
    build_pod(&fixture::owner(), &recipe.revision(), &recipe).unwrap()
}

/// The pod after the user's pod fields were merged with `fields`.
fn pod_with(fields: Value) -> PodSpec {
    let Value::Object(fields) = fields else { panic!("pod fields are an object") };
    pod(|recipe| recipe.template.spec.0.extend(fields)).spec.unwrap()
}

/// The pod after the user's room container was merged with `fields`.
fn room_with(fields: Value) -> Container {
    let Value::Object(fields) = fields else { panic!("container fields are an object") };
    let edit = |recipe: &mut Recipe| {
        recipe.template.spec.0["containers"][0].as_object_mut().unwrap().extend(fields);
    };
    room(&pod(edit).spec.unwrap()).clone()
}

fn room(pod: &PodSpec) -> &Container {
    pod.containers.iter().find(|container| container.name == "room").unwrap()
}

fn sidecar(pod: &PodSpec) -> &Container {
    pod.init_containers.iter().flatten().find(|container| container.name == "outbox").unwrap()
}

/// Names of variables with where their values come from.
fn env(container: &Container) -> BTreeMap<String, String> {
    let source = |variable: &EnvVar| {
        let from = variable.value_from.clone().unwrap_or_default();
        let field = from.field_ref.map(|field| field.field_path);
        let secret = from.secret_key_ref.map(|secret| format!("{}/{}", secret.name, secret.key));
        variable.value.clone().or(field).or(secret).unwrap()
    };
    container.env.iter().flatten().map(|variable| (variable.name.clone(), source(variable))).collect()
}

fn path(probe: Option<&Probe>) -> (&str, i32, i32) {
    let probe = probe.unwrap();
    let path = probe.http_get.as_ref().unwrap().path.as_deref().unwrap();
    (path, probe.period_seconds.unwrap(), probe.failure_threshold.unwrap())
}

#[test]
fn a_pod_is_owned_named_and_labelled_by_its_cluster_and_revision() {
    let metadata = pod(|_| ()).metadata;
    assert_eq!(metadata.generate_name.as_deref(), Some("lounge-"));
    assert_eq!(metadata.name, None);
    assert_eq!(metadata.owner_references.unwrap()[0].controller, Some(true));
    let labels = metadata.labels.unwrap();
    let revision = fixture::recipe().revision();
    let expected = [
        ("app.kubernetes.io/component", "room"),
        ("app.kubernetes.io/instance", "lounge"),
        ("app.kubernetes.io/managed-by", "roomcluster-operator"),
        ("app.kubernetes.io/name", "roomcluster"),
        ("roomcluster.dev/cluster", "lounge"),
        ("roomcluster.dev/revision", revision.as_str()),
        ("team", "a"),
    ];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!(labels, expected);
}

#[test]
fn the_gate_is_there_from_birth_beside_those_of_the_user() {
    let gates = |pod: &PodSpec| -> Vec<String> {
        pod.readiness_gates.iter().flatten().map(|gate| gate.condition_type.clone()).collect()
    };
    assert_eq!(gates(&pod(|_| ()).spec.unwrap()), ["roomcluster.dev/accepting"]);
    let users =
        json!([{ "conditionType": "example.com/warm" }, { "conditionType": "roomcluster.dev/accepting" }]);
    let with_users = pod_with(json!({ "readinessGates": users }));
    assert_eq!(gates(&with_users), ["roomcluster.dev/accepting", "example.com/warm"]);
}

#[test]
fn the_room_container_learns_who_it_is_and_where_its_stores_are() {
    let pod = pod(|_| ()).spec.unwrap();
    let room = room(&pod);
    assert_eq!(room.args.as_deref(), Some(&["room".to_owned()][..]));
    let expected = [
        ("NODE_ID", "metadata.name"),
        ("POD_UID", "metadata.uid"),
        ("POD_IP", "status.podIP"),
        ("ADVERTISE_ADDR", "$(POD_IP):7400"),
        ("GRPC_LISTEN", "0.0.0.0:7400"),
        ("ADMIN_LISTEN", "0.0.0.0:7401"),
        ("REVISION", fixture::recipe().revision().as_str()),
        ("DATABASE_URL", "lounge-db/url"),
        ("REDIS_URL", "lounge-redis/redis-url"),
        ("NODE_TOKEN", "lounge-node-token/token"),
        ("AWAIT_ORDER", "true"),
        ("OUTBOX_MODE", "sidecar"),
        ("SHUTDOWN_TIMEOUT", "30s"),
        ("PRE_STOP_WAIT", "2s"),
        ("LOG_FORMAT", "json"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(env(room), BTreeMap::from(expected));
    let ports: Vec<_> = room.ports.iter().flatten().map(|port| port.container_port).collect();
    assert_eq!(ports, [7400, 7401]);
}

#[test]
fn the_address_is_defined_before_it_is_used_and_the_user_comes_last() {
    let pod = pod(|_| ()).spec.unwrap();
    let names: Vec<&str> = room(&pod).env.iter().flatten().map(|variable| variable.name.as_str()).collect();
    let position = |name: &str| names.iter().position(|known| *known == name).unwrap();
    assert!(position("POD_IP") < position("ADVERTISE_ADDR"));
    assert_eq!(position("LOG_FORMAT"), names.len() - 1);
}

#[test]
fn every_variable_that_the_operator_sets_is_reserved() {
    let pod = pod(|_| ()).spec.unwrap();
    for name in env(room(&pod)).keys().chain(env(sidecar(&pod)).keys()).filter(|name| *name != "LOG_FORMAT") {
        assert!(names::RESERVED_ENV.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn the_sidecar_outlives_the_room_container_and_has_no_pre_stop() {
    let pod = pod(|_| ()).spec.unwrap();
    let outbox = sidecar(&pod);
    assert_eq!(outbox.restart_policy.as_deref(), Some("Always"));
    assert_eq!(outbox.lifecycle, None);
    assert_eq!(outbox.readiness_probe, None);
    assert_eq!(outbox.image, room(&pod).image);
    assert_eq!(outbox.args.as_deref(), Some(&["outbox".to_owned()][..]));
    let env = env(outbox);
    assert_eq!(env["WORKER_DRAIN_TIMEOUT"], "30s");
    assert_eq!(env["ADMIN_LISTEN"], "0.0.0.0:7402");
    assert_eq!(env["DATABASE_URL"], "lounge-db/url");
    assert!(!env.contains_key("NODE_TOKEN"));
    assert_eq!(path(outbox.startup_probe.as_ref()).0, "/healthz/live");
    assert_eq!(path(outbox.liveness_probe.as_ref()), ("/healthz/live", 5, 3));
}

#[test]
fn the_sidecar_starts_after_init_containers_of_the_user_and_only_in_its_mode() {
    let with_init = pod_with(json!({ "initContainers": [{ "name": "wait" }] }));
    let order: Vec<&str> =
        with_init.init_containers.iter().flatten().map(|container| container.name.as_str()).collect();
    assert_eq!(order, ["wait", "outbox"]);
    let in_process = pod(|recipe| recipe.outbox.mode = OutboxMode::InProcess).spec.unwrap();
    assert_eq!(in_process.init_containers, None);
    assert_eq!(env(room(&in_process))["OUTBOX_MODE"], "in-process");
}

#[test]
fn the_sink_of_the_outbox_reaches_both_containers() {
    let sink = SecretKeyRef { name: "sink".to_owned(), key: "url".to_owned() };
    let pod = pod(|recipe| recipe.outbox.sink_url_secret_ref = Some(sink)).spec.unwrap();
    assert_eq!(env(room(&pod))["OUTBOX_SINK_URL"], "sink/url");
    assert_eq!(env(sidecar(&pod))["OUTBOX_SINK_URL"], "sink/url");
}

#[test]
fn grace_covers_every_phase_of_the_shutdown() {
    let grace = |edit: Edit| pod(edit).spec.unwrap().termination_grace_period_seconds.unwrap();
    let cases: [(Edit, i64); 4] = [
        (|_| (), 2 + 30 + 30 + 10),
        (|recipe| recipe.outbox.mode = OutboxMode::InProcess, 2 + 30 + 10),
        (|recipe| recipe.shutdown.timeout_seconds = 300, 2 + 300 + 30 + 10),
        (
            |recipe| drop(recipe.template.spec.0.insert("terminationGracePeriodSeconds".into(), json!(500))),
            500,
        ),
    ];
    for (edit, expected) in cases {
        assert_eq!(grace(edit), expected);
    }
}

#[test]
fn pre_stop_is_the_binary_itself_and_a_post_start_of_the_user_stays() {
    let room = room_with(json!({ "lifecycle": { "postStart": { "sleep": { "seconds": 1 } } } }));
    let lifecycle = room.lifecycle.unwrap();
    assert!(lifecycle.post_start.is_some());
    assert_eq!(lifecycle.pre_stop.unwrap().exec.unwrap().command.unwrap(), ["dataplane", "pre-stop"]);
}

#[test]
fn probes_ask_the_admin_port_unless_the_user_has_probes() {
    let room = room_with(json!({}));
    assert_eq!(path(room.readiness_probe.as_ref()), ("/healthz/ready", 1, 2));
    assert_eq!(path(room.liveness_probe.as_ref()), ("/healthz/live", 5, 3));
    assert_eq!(path(room.startup_probe.as_ref()), ("/healthz/live", 1, 60));
    let room = room_with(json!({ "livenessProbe": { "exec": { "command": ["true"] } } }));
    assert_eq!(room.liveness_probe.unwrap().http_get, None);
    assert!(room.readiness_probe.is_some());
}

#[test]
fn ports_of_the_user_are_added_and_may_complete_one_of_the_operator() {
    let ports =
        json!([{ "name": "grpc", "containerPort": 7400, "hostPort": 7400 }, { "containerPort": 9000 }]);
    let ports = room_with(json!({ "ports": ports })).ports.unwrap();
    let seen: Vec<_> = ports.iter().map(|port| (port.container_port, port.host_port)).collect();
    assert_eq!(seen, [(7400, Some(7400)), (7401, None), (9000, None)]);
}

#[test]
fn pods_are_spread_unless_the_user_places_them() {
    let spread = pod_with(json!({})).topology_spread_constraints.unwrap();
    assert!(spread.iter().all(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway"));
    assert_eq!(spread[0].topology_key, "kubernetes.io/hostname");
    assert_eq!(pod_with(json!({ "affinity": { "nodeAffinity": {} } })).topology_spread_constraints, None);
    let own = json!([{ "topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule" }]);
    let kept = pod_with(json!({ "topologySpreadConstraints": own })).topology_spread_constraints.unwrap();
    assert_eq!((kept.len(), kept[0].topology_key.as_str()), (1, "rack"));
}

#[test]
fn pods_fit_the_restricted_standard_unless_the_user_decides_otherwise() {
    let pod = pod_with(json!({}));
    assert_eq!(pod.security_context.as_ref().unwrap().run_as_non_root, Some(true));
    for container in [room(&pod), sidecar(&pod)] {
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false));
        assert_eq!(security.capabilities.as_ref().unwrap().drop.as_deref(), Some(&["ALL".to_owned()][..]));
    }
    assert_eq!(pod.automount_service_account_token, Some(false));
    let own =
        pod_with(json!({ "securityContext": { "runAsUser": 7 }, "automountServiceAccountToken": true }));
    let security = own.security_context.unwrap();
    assert_eq!((security.run_as_user, security.run_as_non_root), (Some(7), None));
    assert_eq!(own.automount_service_account_token, Some(true));
}

#[test]
fn what_else_the_user_writes_is_kept() {
    let pod = pod_with(json!({
        "hostNetwork": true, "nodeSelector": { "pool": "rooms" }, "imagePullSecrets": [{ "name": "pull" }],
        "volumes": [{ "name": "scratch", "emptyDir": {} }],
    }));
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(pod.node_selector.unwrap()["pool"], "rooms");
    assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "pull");
    assert!(pod.volumes.unwrap()[0].empty_dir.is_some());
    let room = room_with(json!({ "args": ["room", "--verbose"] }));
    assert_eq!(room.args.unwrap(), ["room", "--verbose"]);
    assert_eq!(room.resources.unwrap().requests.unwrap()["cpu"].0, "500m");
}

#[test]
fn a_pod_of_an_old_revision_is_made_from_history_and_not_from_the_spec_of_today() {
    let old = fixture::recipe();
    let stored = build_controller_revision(&fixture::owner(), &old, 1);
    let before = build_pod(&fixture::owner(), &old.revision(), &old).unwrap();
    let (revision, recipe) = read_controller_revision(&stored).unwrap();
    assert_eq!(build_pod(&fixture::owner(), &revision, &recipe).unwrap(), before);
}
