//! The rules that the API server checks by CEL, and what each says to write instead.
//!
//! A rule reads only fields that the schema declares. Everything that a rule walks over has a bound
//! (`maxItems`, `maxProperties`, `maxLength`), or the API server refuses the whole definition as too costly.

use serde_json::{Value, json};

use crate::names::{
    CLUSTER_NAME_MAX_LENGTH, OUTBOX_CONTAINER, PREFIX, RESERVED_ENV, RESERVED_LABELS, ROOM_CONTAINER,
};
use crate::spec::GRACE_RESERVE_SECONDS;

/// Rule on the whole resource: derived names must be valid names of a Service, a Job and a label value.
pub(crate) fn cluster_name() -> String {
    format!(
        "self.metadata.name.size() <= {CLUSTER_NAME_MAX_LENGTH} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"
    )
}

/// Message of [`cluster_name`].
pub(crate) const CLUSTER_NAME_MESSAGE: &str = "metadata.name also names Services and Jobs: write at most 40 lower-case letters, digits and '-', beginning with a letter";

/// Rules on the spec: the grace period covers every phase of the shutdown.
pub(crate) fn spec() -> Value {
    let needed = format!(
        "self.shutdown.preStopWaitSeconds + self.shutdown.timeoutSeconds \
         + (self.outbox.mode == 'Sidecar' ? self.shutdown.workerDrainTimeoutSeconds : 0) + {GRACE_RESERVE_SECONDS}"
    );
    let written = "self.template.spec.terminationGracePeriodSeconds";
    json!([{
        "rule": format!("!has({written}) || {written} >= {needed}"),
        "message": format!(
            "template.spec.terminationGracePeriodSeconds cuts the shutdown short: leave it out, then it is computed, or write \
             at least shutdown.preStopWaitSeconds + timeoutSeconds + workerDrainTimeoutSeconds (if outbox.mode is Sidecar) + {GRACE_RESERVE_SECONDS}"
        ),
    }])
}

/// Rules on the budgets of a rolling update.
pub(crate) fn rolling_update() -> Value {
    let form = |field: &str| {
        format!(
            "type(self.{field}) == int ? self.{field} >= 0 : self.{field}.matches('^(100|[1-9]?[0-9])%$')"
        )
    };
    let zero =
        |field: &str| format!("(type(self.{field}) == int ? self.{field} == 0 : self.{field} == '0%')");
    json!([
        {
            "rule": form("maxSurge"),
            "message": "maxSurge: write a number of pods, as in 1, or a percentage in quotes, as in \"25%\"",
        },
        {
            "rule": form("maxUnavailable"),
            "message": "maxUnavailable: write a number of pods, as in 1, or a percentage in quotes, as in \"25%\"",
        },
        {
            "rule": format!("!({} && {})", zero("maxSurge"), zero("maxUnavailable")),
            "message": "maxSurge and maxUnavailable are both zero, so no pod could ever be replaced: write maxSurge: 1",
        },
    ])
}

/// Rule on the drain timeout.
pub(crate) fn drain() -> Value {
    json!([{
        "rule": "duration(self.timeout) > duration('0s')",
        "message": "timeout must be longer than zero: write it as in 30m; to wait without end write onTimeout: Wait",
    }])
}

/// Rule on the labels of a pod template.
pub(crate) fn template_labels() -> Value {
    json!([{
        "rule": format!("self.all(key, !key.startsWith('{PREFIX}') && !(key in {}))", list(RESERVED_LABELS)),
        "message": format!(
            "labels {PREFIX}* and {} are written by the operator: take them out of the template",
            RESERVED_LABELS.join(", ")
        ),
    }])
}

/// Rule on the annotations of a pod template.
pub(crate) fn template_annotations() -> Value {
    json!([{
        "rule": format!("self.all(key, !key.startsWith('{PREFIX}'))"),
        "message": format!("annotations {PREFIX}* are written by the operator: take them out of the template"),
    }])
}

/// Rules on the pod of a template.
pub(crate) fn template_pod() -> Value {
    json!([
        {
            "rule": format!("self.containers.exists_one(c, c.name == '{ROOM_CONTAINER}')"),
            "message": format!("the pod needs one container named {ROOM_CONTAINER}: name the data plane's container so"),
        },
        {
            "rule": format!("self.containers.all(c, c.name != '{OUTBOX_CONTAINER}') && (!has(self.initContainers) || self.initContainers.all(c, !(c.name in ['{OUTBOX_CONTAINER}', '{ROOM_CONTAINER}'])))"),
            "message": format!("a container named {OUTBOX_CONTAINER} is added by the operator: give yours another name (to run without it write outbox.mode: InProcess)"),
        },
        {
            "rule": "!has(self.restartPolicy) || self.restartPolicy == 'Always'",
            "message": "restartPolicy must be Always, or be left out",
        },
    ])
}

/// Rules on one container of a template.
pub(crate) fn template_container() -> Value {
    json!([{
        "rule": format!("self.name != '{ROOM_CONTAINER}' || !has(self.env) || self.env.all(e, !(e.name in {}))", list(RESERVED_ENV)),
        "message": format!(
            "the operator sets these variables of container {ROOM_CONTAINER}; take them out of env: {}",
            RESERVED_ENV.join(", ")
        ),
    }])
}

/// A CEL list of strings.
fn list(items: &[&str]) -> String {
    let quoted: Vec<String> = items.iter().map(|item| format!("'{item}'")).collect();
    format!("[{}]", quoted.join(", "))
}
