//! The definition that is installed.
//!
//! The derived schema lets null stand wherever a field may be left out, and names number formats that
//! Kubernetes does not know. Neither is wanted: null would escape defaults and rules, and unknown formats
//! draw a warning at each install.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::spec::RoomCluster;

/// The definition of the resource.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = RoomCluster::crd();
    let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    for schema in schemas.filter_map(|validation| validation.open_api_v3_schema.as_mut()) {
        settle(schema);
    }
    crd
}

/// Takes null and unknown formats out of a schema and all below it.
fn settle(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
    }
    match schema.format.as_deref() {
        Some("uint8" | "uint16" | "uint32") => schema.format = Some("int32".to_owned()),
        Some("uint64") => schema.format = Some("int64".to_owned()),
        _ => {}
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        settle(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        settle(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        settle(values);
    }
}
