//! The containers that run the data plane's binary.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EnvVarSource, ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler,
    ObjectFieldSelector, Probe, ResourceRequirements, SecretKeySelector,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roomcluster_crds::{OutboxMode, SecretKeyRef, names};

use super::super::Recipe;
use crate::ids::Revision;

/// Seconds that a container may take until its health listener answers for the first time.
const STARTUP_SECONDS: i32 = 60;

/// What the environment of the containers is made from.
pub(super) struct Parts<'a> {
    pub(super) cluster: &'a str,
    pub(super) revision: &'a Revision,
    pub(super) recipe: &'a Recipe,
}

/// The room container: the user's, completed.
pub(super) fn build_room(parts: &Parts<'_>, room: Container) -> Container {
    let mut env = room_env(parts);
    env.extend(room.env.iter().flatten().cloned());
    let mut ports =
        vec![port(names::GRPC_PORT_NAME, names::GRPC_PORT), port(names::ADMIN_PORT_NAME, names::ADMIN_PORT)];
    merge_ports(&mut ports, room.ports.as_deref().unwrap_or_default());
    let pre_stop = LifecycleHandler {
        exec: Some(ExecAction { command: Some(vec!["dataplane".to_owned(), "pre-stop".to_owned()]) }),
        ..LifecycleHandler::default()
    };
    Container {
        args: room.args.or_else(|| Some(vec!["room".to_owned()])),
        env: Some(env),
        ports: Some(ports),
        lifecycle: Some(Lifecycle { pre_stop: Some(pre_stop), ..room.lifecycle.unwrap_or_default() }),
        readiness_probe: room.readiness_probe.or_else(|| Some(readiness_probe())),
        liveness_probe: room.liveness_probe.or_else(|| Some(liveness_probe(names::ADMIN_PORT_NAME))),
        startup_probe: room.startup_probe.or_else(|| Some(startup_probe(names::ADMIN_PORT_NAME))),
        ..room
    }
}

/// The outbox sidecar: the same image and surroundings as the room container.
///
/// It has no preStop, which would run at once, beside the room container; as a native sidecar it gets its
/// SIGTERM only after the room container has ended. It is not asked for readiness: a slow sink makes
/// no room unreachable.
pub(super) fn build_outbox(parts: &Parts<'_>, room: &Container) -> Container {
    let mut env = vec![
        field("NODE_ID", "metadata.name"),
        field("POD_UID", "metadata.uid"),
        value("ADMIN_LISTEN", &format!("0.0.0.0:{}", names::OUTBOX_ADMIN_PORT)),
        value("REVISION", parts.revision.as_str()),
        value("WORKER_DRAIN_TIMEOUT", &seconds(parts.recipe.shutdown.worker_drain_timeout_seconds)),
    ];
    env.extend(store_env(parts.recipe));
    env.extend(room.env.iter().flatten().cloned());
    let resources = parts.recipe.outbox.resources.clone().map(|resources| ResourceRequirements {
        limits: (!resources.limits.is_empty()).then_some(resources.limits),
        requests: (!resources.requests.is_empty()).then_some(resources.requests),
        claims: None,
    });
    Container {
        name: names::OUTBOX_CONTAINER.to_owned(),
        image: room.image.clone(),
        image_pull_policy: room.image_pull_policy.clone(),
        command: room.command.clone(),
        args: Some(vec!["outbox".to_owned()]),
        env: Some(env),
        env_from: room.env_from.clone(),
        ports: Some(vec![port(names::OUTBOX_ADMIN_PORT_NAME, names::OUTBOX_ADMIN_PORT)]),
        resources,
        restart_policy: Some("Always".to_owned()),
        security_context: room.security_context.clone(),
        startup_probe: Some(startup_probe(names::OUTBOX_ADMIN_PORT_NAME)),
        liveness_probe: Some(liveness_probe(names::OUTBOX_ADMIN_PORT_NAME)),
        volume_mounts: room.volume_mounts.clone(),
        ..Container::default()
    }
}

/// Variables of the stores, for every process of the data plane.
pub(in super::super) fn store_env(recipe: &Recipe) -> Vec<EnvVar> {
    let mut env = vec![
        secret("DATABASE_URL", &recipe.database.url_secret_ref),
        secret("REDIS_URL", &recipe.redis.url_secret_ref),
    ];
    env.extend(recipe.outbox.sink_url_secret_ref.as_ref().map(|sink| secret("OUTBOX_SINK_URL", sink)));
    env
}

fn room_env(parts: &Parts<'_>) -> Vec<EnvVar> {
    let shutdown = &parts.recipe.shutdown;
    let outbox_mode = match parts.recipe.outbox.mode {
        OutboxMode::Sidecar => "sidecar",
        OutboxMode::InProcess => "in-process",
    };
    let token =
        SecretKeyRef { name: names::token_secret_name(parts.cluster), key: names::TOKEN_KEY.to_owned() };
    let mut env = vec![
        field("NODE_ID", "metadata.name"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
        value("ADVERTISE_ADDR", &format!("$(POD_IP):{}", names::GRPC_PORT)),
        value("GRPC_LISTEN", &format!("0.0.0.0:{}", names::GRPC_PORT)),
        value("ADMIN_LISTEN", &format!("0.0.0.0:{}", names::ADMIN_PORT)),
        value("REVISION", parts.revision.as_str()),
        secret("NODE_TOKEN", &token),
        value("AWAIT_ORDER", "true"),
        value("OUTBOX_MODE", outbox_mode),
        value("SHUTDOWN_TIMEOUT", &seconds(shutdown.timeout_seconds)),
        value("PRE_STOP_WAIT", &seconds(shutdown.pre_stop_wait_seconds)),
    ];
    env.extend(store_env(parts.recipe));
    env
}

/// Adds the user's ports. One that repeats a port of the operator takes its place.
fn merge_ports(ports: &mut Vec<ContainerPort>, users: &[ContainerPort]) {
    for port in users {
        match ports.iter_mut().find(|known| known.container_port == port.container_port) {
            Some(known) => *known = port.clone(),
            None => ports.push(port.clone()),
        }
    }
}

fn readiness_probe() -> Probe {
    Probe {
        period_seconds: Some(1),
        failure_threshold: Some(2),
        ..probe(names::ADMIN_PORT_NAME, "/healthz/ready")
    }
}

fn liveness_probe(port: &str) -> Probe {
    Probe { period_seconds: Some(5), failure_threshold: Some(3), ..probe(port, "/healthz/live") }
}

fn startup_probe(port: &str) -> Probe {
    Probe {
        period_seconds: Some(1),
        failure_threshold: Some(STARTUP_SECONDS),
        ..probe(port, "/healthz/live")
    }
}

fn probe(port: &str, path: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(port.to_owned()),
            ..HTTPGetAction::default()
        }),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort { name: Some(name.to_owned()), container_port: number, ..ContainerPort::default() }
}

fn seconds(count: u32) -> String {
    format!("{count}s")
}

fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let field_ref = ObjectFieldSelector { field_path: path.to_owned(), ..ObjectFieldSelector::default() };
    from(name, EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() })
}

fn secret(name: &str, key: &SecretKeyRef) -> EnvVar {
    let secret_key_ref =
        SecretKeySelector { name: key.name.clone(), key: key.key.clone(), ..SecretKeySelector::default() };
    from(name, EnvVarSource { secret_key_ref: Some(secret_key_ref), ..EnvVarSource::default() })
}

fn from(name: &str, source: EnvVarSource) -> EnvVar {
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}
