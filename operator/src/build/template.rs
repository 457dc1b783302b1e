//! The user's template, checked.
//!
//! The API server has checked the same by rules where it could. Here it is checked again, because a recipe may
//! come from history or from a cluster whose definition is older, and because the pod's fields are open there.

use std::error::Error;
use std::iter;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};
use roomcluster_crds::{TemplateError, names};

use super::Recipe;

/// Why no pod can be made from a template. Each message says what to write.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTemplate {
    /// It is no pod.
    #[error(transparent)]
    ParsePod(#[from] TemplateError),
    /// The container with the data plane is missing.
    #[error("spec.template.spec.containers has none named room: name the data plane's container so")]
    NoRoomContainer,
    /// The container with the data plane has no image.
    #[error("container room has no image: write one, as in image: example/dataplane:v2")]
    NoImage,
    /// The user sets a variable that the operator sets.
    #[error("container room sets {name} in env, which the operator sets: take it out")]
    ReservedEnv {
        /// The variable.
        name: String,
    },
    /// The sink is written twice.
    #[error("OUTBOX_SINK_URL is set in env and by spec.outbox.sinkUrlSecretRef: write only one of them")]
    SinkTwice,
    /// The user has a container of the sidecar's name.
    #[error("a container named outbox is added by the operator: give yours another name")]
    ReservedContainer,
    /// A port of the user has the operator's name or number.
    #[error(
        "port {name} ({number}) of container {container} is taken: room listens on grpc 7400 and admin 7401, outbox on \
         outbox-admin 7402"
    )]
    TakenPort {
        /// The container.
        container: String,
        /// The port's name, empty if it has none.
        name: String,
        /// The port's number.
        number: i32,
    },
    /// The user has a preStop hook.
    #[error("container room has lifecycle.preStop, which the operator sets: take it out")]
    ReservedPreStop,
    /// Containers would not be restarted.
    #[error("spec.template.spec.restartPolicy is {policy}: write Always, or leave it out")]
    RestartPolicy {
        /// What is written.
        policy: String,
    },
    /// The pod would be killed before its shutdown is over.
    #[error(
        "spec.template.spec.terminationGracePeriodSeconds is {written}, but the shutdown needs {needed}: write at least \
         {needed}, or leave it out"
    )]
    GraceTooShort {
        /// What is written.
        written: i64,
        /// What all phases need together.
        needed: u32,
    },
}

impl InvalidTemplate {
    /// The message with its causes, as one sentence for conditions and events.
    #[must_use]
    pub fn sentence(&self) -> String {
        let causes = iter::successors(self.source(), |error| (*error).source());
        causes.fold(self.to_string(), |sentence, cause| format!("{sentence}: {cause}"))
    }
}

/// A template that makes a pod: the room container apart from the rest.
#[derive(Clone, Debug)]
pub struct RoomTemplate {
    pub(super) room: Container,
    /// The pod without its room container.
    pub(super) pod: PodSpec,
}

impl RoomTemplate {
    /// Checks a recipe's template.
    ///
    /// # Errors
    /// When no pod can be made from it.
    pub fn of(recipe: &Recipe) -> Result<Self, InvalidTemplate> {
        let mut pod = recipe.template.pod_spec()?;
        check_pod(recipe, &pod)?;
        let index = pod.containers.iter().position(|container| container.name == names::ROOM_CONTAINER);
        let room = pod.containers.remove(index.ok_or(InvalidTemplate::NoRoomContainer)?);
        check_room(recipe, &room)?;
        Ok(Self { room, pod })
    }
}

fn check_pod(recipe: &Recipe, pod: &PodSpec) -> Result<(), InvalidTemplate> {
    if let Some(policy) = pod.restart_policy.as_deref().filter(|policy| *policy != "Always") {
        return Err(InvalidTemplate::RestartPolicy { policy: policy.to_owned() });
    }
    let needed = recipe.grace_seconds();
    if let Some(written) = pod.termination_grace_period_seconds.filter(|written| *written < i64::from(needed))
    {
        return Err(InvalidTemplate::GraceTooShort { written, needed });
    }
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        if container.name == names::OUTBOX_CONTAINER {
            return Err(InvalidTemplate::ReservedContainer);
        }
        check_ports(container)?;
    }
    Ok(())
}

fn check_room(recipe: &Recipe, room: &Container) -> Result<(), InvalidTemplate> {
    if room.image.as_deref().is_none_or(str::is_empty) {
        return Err(InvalidTemplate::NoImage);
    }
    for variable in room.env.iter().flatten() {
        if names::RESERVED_ENV.contains(&variable.name.as_str()) {
            return Err(InvalidTemplate::ReservedEnv { name: variable.name.clone() });
        }
        if variable.name == "OUTBOX_SINK_URL" && recipe.outbox.sink_url_secret_ref.is_some() {
            return Err(InvalidTemplate::SinkTwice);
        }
    }
    if room.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some()) {
        return Err(InvalidTemplate::ReservedPreStop);
    }
    Ok(())
}

/// A port may repeat one of the room container exactly, to give it a hostPort for example.
fn check_ports(container: &Container) -> Result<(), InvalidTemplate> {
    let is_room = container.name == names::ROOM_CONTAINER;
    let taken = |port: &&ContainerPort| {
        let name = port.name.as_deref();
        [
            (names::GRPC_PORT_NAME, names::GRPC_PORT, true),
            (names::ADMIN_PORT_NAME, names::ADMIN_PORT, true),
            (names::OUTBOX_ADMIN_PORT_NAME, names::OUTBOX_ADMIN_PORT, false),
        ]
        .into_iter()
        .any(|(taken_name, taken_number, of_room)| {
            let repeats =
                name == Some(taken_name) && port.container_port == taken_number && of_room && is_room;
            !repeats && (name == Some(taken_name) || port.container_port == taken_number)
        })
    };
    match container.ports.iter().flatten().find(taken) {
        None => Ok(()),
        Some(port) => Err(InvalidTemplate::TakenPort {
            container: container.name.clone(),
            name: port.name.clone().unwrap_or_default(),
            number: port.container_port,
        }),
    }
}

#[cfg(test)]
mod tests {
    use roomcluster_crds::SecretKeyRef;
    use serde_json::{Value, json};

    use super::super::fixture;
    use super::*;

    type Edit = fn(&mut Value);

    fn verdict(edit: impl FnOnce(&mut Value)) -> Result<RoomTemplate, InvalidTemplate> {
        let mut recipe = fixture::recipe();
        let mut pod = Value::Object(recipe.template.spec.0);
        edit(&mut pod);
        let Value::Object(pod) = pod else { panic!("a pod is an object") };
        recipe.template.spec.0 = pod;
        RoomTemplate::of(&recipe)
    }

    #[test]
    fn a_good_template_gives_the_room_container_apart_from_the_rest() {
        let template =
            verdict(|pod| pod["containers"].as_array_mut().unwrap().push(json!({ "name": "log" }))).unwrap();
        assert_eq!(template.room.name, "room");
        assert_eq!(template.pod.containers.len(), 1);
        assert_eq!(template.pod.containers[0].name, "log");
    }

    #[test]
    fn what_would_break_a_pod_is_refused_and_the_message_says_what_to_write() {
        let cases: [(&str, Edit); 14] = [
            ("name the data plane's container so", |pod| pod["containers"][0]["name"] = json!("main")),
            ("write one, as in image:", |pod| {
                drop(pod["containers"][0].as_object_mut().unwrap().remove("image"))
            }),
            ("write one, as in image:", |pod| pod["containers"][0]["image"] = json!("")),
            ("sets REVISION in env", |pod| pod["containers"][0]["env"] = json!([{ "name": "REVISION" }])),
            ("give yours another name", |pod| pod["initContainers"] = json!([{ "name": "outbox" }])),
            ("give yours another name", |pod| {
                pod["containers"].as_array_mut().unwrap().push(json!({ "name": "outbox" }));
            }),
            ("room listens on grpc 7400", |pod| {
                pod["containers"][0]["ports"] = json!([{ "name": "grpc", "containerPort": 9000 }]);
            }),
            ("room listens on grpc 7400", |pod| {
                pod["containers"][0]["ports"] = json!([{ "containerPort": 7401 }]);
            }),
            ("room listens on grpc 7400", |pod| {
                let log = json!({ "name": "log", "ports": [{ "name": "grpc", "containerPort": 7400 }] });
                pod["containers"].as_array_mut().unwrap().push(log);
            }),
            ("which the operator sets: take it out", |pod| {
                pod["containers"][0]["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 5 } } });
            }),
            ("write Always, or leave it out", |pod| pod["restartPolicy"] = json!("Never")),
            ("write at least 72", |pod| pod["terminationGracePeriodSeconds"] = json!(71)),
            ("containers[0].resorces is no field", |pod| {
                pod["containers"][0]["resorces"] = json!({ "limits": 1 })
            }),
            ("is no pod: ", |pod| pod["containers"] = json!("room")),
        ];
        for (message, edit) in cases {
            let error = verdict(edit).unwrap_err().sentence();
            assert!(error.contains(message), "expected \"{message}\" in \"{error}\"");
        }
    }

    #[test]
    fn every_reserved_variable_is_refused() {
        for name in names::RESERVED_ENV {
            let error = verdict(|pod| pod["containers"][0]["env"] = json!([{ "name": name }])).unwrap_err();
            assert!(matches!(error, InvalidTemplate::ReservedEnv { .. }), "{name}");
        }
    }

    #[test]
    fn the_sink_is_written_once_in_env_or_by_reference() {
        let mut recipe = fixture::recipe();
        recipe.template.spec.0["containers"][0]["env"] =
            json!([{ "name": "OUTBOX_SINK_URL", "value": "redis://s" }]);
        assert!(RoomTemplate::of(&recipe).is_ok());
        recipe.outbox.sink_url_secret_ref = Some(SecretKeyRef { name: "sink".into(), key: "url".into() });
        assert!(matches!(RoomTemplate::of(&recipe), Err(InvalidTemplate::SinkTwice)));
    }

    #[test]
    fn a_port_of_the_room_container_may_be_repeated_to_add_to_it() {
        let ports =
            json!([{ "name": "grpc", "containerPort": 7400, "hostPort": 7400 }, { "containerPort": 9000 }]);
        assert!(verdict(|pod| pod["containers"][0]["ports"] = ports).is_ok());
    }
}
