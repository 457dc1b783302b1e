//! The pod template of a RoomCluster.
//!
//! The pod's fields stay open: a full pod schema would exceed the annotation of client-side apply and the
//! budget for CEL. Declared is only what a rule reads. [`PodTemplate::pod_spec`] is the one way from
//! the open object to a typed pod, and it loses nothing silently: a field that it does not know is an error.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::rules;

/// The pods of a RoomCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(default, skip_serializing_if = "TemplateMeta::is_empty")]
    pub metadata: TemplateMeta,
    /// The pod, as in any pod template; the data plane is its container `room`.
    pub spec: OpenPodSpec,
}

/// Labels and annotations of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateMeta {
    /// Labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations_schema")]
    pub annotations: BTreeMap<String, String>,
}

impl TemplateMeta {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// A pod's fields as the user wrote them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpenPodSpec(pub Map<String, Value>);

/// The template's pod cannot be read as a pod.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A field has the wrong type, or a required one is missing.
    #[error("spec.template.spec is no pod")]
    ParsePod(#[source] serde_json::Error),
    /// A field that no pod has, at least none of the Kubernetes version that the operator is built for.
    #[error(
        "spec.template.spec.{path} is no field of a pod known to this operator: correct the spelling or take it out"
    )]
    UnknownField {
        /// Where the field stands, below `spec.template.spec`.
        path: String,
    },
}

impl PodTemplate {
    /// The template's pod with its types.
    ///
    /// # Errors
    /// When the object is not a pod, or holds a field that would get lost.
    pub fn pod_spec(&self) -> Result<PodSpec, TemplateError> {
        let written = Value::Object(self.spec.0.clone());
        let pod: PodSpec = serde_json::from_value(written.clone()).map_err(TemplateError::ParsePod)?;
        let read = serde_json::to_value(&pod).map_err(TemplateError::ParsePod)?;
        match lost_field(&written, &read) {
            Some(path) => Err(TemplateError::UnknownField { path }),
            None => Ok(pod),
        }
    }
}

/// Path of the first field of `written` that `read` does not have. Null and empty values say nothing, so they
/// may get lost.
fn lost_field(written: &Value, read: &Value) -> Option<String> {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            written.iter().find_map(|(key, value)| match read.get(key) {
                Some(known) => lost_field(value, known).map(|rest| join(key, &rest)),
                None => (!is_blank(value)).then(|| key.clone()),
            })
        }
        (Value::Array(written), Value::Array(read)) => {
            written.iter().enumerate().find_map(|(index, value)| {
                lost_field(value, read.get(index)?).map(|rest| join(&format!("[{index}]"), &rest))
            })
        }
        _ => None,
    }
}

fn join(head: &str, rest: &str) -> String {
    if rest.starts_with('[') { format!("{head}{rest}") } else { format!("{head}.{rest}") }
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    string_map("Labels of the pods.", &rules::template_labels(), 63)
}

fn annotations_schema(_: &mut SchemaGenerator) -> Schema {
    string_map("Annotations of the pods.", &rules::template_annotations(), 65_536)
}

fn string_map(description: &str, rules: &Value, value_max_length: u32) -> Schema {
    json_schema!({
        "description": description,
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": value_max_length },
        "x-kubernetes-validations": rules,
    })
}

impl JsonSchema for OpenPodSpec {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OpenPodSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let name = json!({ "type": "string", "minLength": 1, "maxLength": 63 });
        json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "x-kubernetes-validations": rules::template_pod(),
            "required": ["containers"],
            "properties": {
                "containers": named_list(32, &json!({
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "x-kubernetes-validations": rules::template_container(),
                    "required": ["name"],
                    "properties": {
                        "name": name,
                        "env": named_list(256, &json!({
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": true,
                            "required": ["name"],
                            "properties": { "name": { "type": "string", "minLength": 1, "maxLength": 253 } },
                        })),
                    },
                })),
                "initContainers": named_list(32, &json!({
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "required": ["name"],
                    "properties": { "name": name },
                })),
                "restartPolicy": { "type": "string", "maxLength": 16 },
                "terminationGracePeriodSeconds": { "type": "integer", "format": "int64", "minimum": 1 },
            },
        })
    }
}

/// A list whose items are told apart by `name`, so that server-side apply merges them.
fn named_list(max_items: u32, item: &Value) -> Value {
    json!({
        "type": "array",
        "maxItems": max_items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": item,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(spec: &Value) -> PodTemplate {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    #[test]
    fn a_pod_reads_with_its_types() {
        let pod = template(&json!({
            "containers": [{ "name": "room", "image": "example/dataplane:v2", "resources": { "limits": { "cpu": 1 } } }],
            "terminationGracePeriodSeconds": 90,
            "volumes": [], "nodeSelector": {}, "affinity": null,
        }))
        .pod_spec()
        .unwrap();
        assert_eq!(pod.containers[0].image.as_deref(), Some("example/dataplane:v2"));
        assert_eq!(pod.termination_grace_period_seconds, Some(90));
    }

    #[test]
    fn a_field_that_no_pod_has_is_named_instead_of_lost() {
        let error =
            template(&json!({ "containers": [{ "name": "room", "resorces": { "limits": {"cpu": "1"} } }] }))
                .pod_spec()
                .unwrap_err();
        assert!(error.to_string().contains("spec.template.spec.containers[0].resorces"), "{error}");
    }

    #[test]
    fn a_field_of_the_wrong_type_is_an_error() {
        let error = template(&json!({ "containers": "room" })).pod_spec().unwrap_err();
        assert!(matches!(error, TemplateError::ParsePod(_)));
    }
}
