//! The reference page of the resource, written from its schema, so that it cannot say anything else.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::crd;

const HEAD: &str = "# RoomCluster\n\n\
    `roomcluster.dev/v1alpha1`, namespaced, short name `rcs`. Printed by `crdgen --reference`; do not edit.\n";

/// The page, as Markdown.
///
/// # Errors
/// When the definition cannot be read back as JSON, which its types exclude.
pub fn reference() -> Result<String, serde_json::Error> {
    let crd = serde_json::to_value(crd())?;
    let mut page = HEAD.to_owned();
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    for (part, title) in [("spec", "Spec"), ("status", "Status")] {
        let mut rows = String::new();
        let mut rules = Vec::new();
        walk(part, &root[part], &mut rows, &mut rules);
        page += &format!("\n## {title}\n\n| field | type | default | meaning |\n|---|---|---|---|\n{rows}");
        if !rules.is_empty() {
            page += "\nRefused with these words:\n\n";
            rules.iter().for_each(|(path, message)| page += &format!("- `{path}`: {message}\n"));
        }
    }
    Ok(page)
}

fn walk(path: &str, schema: &Value, rows: &mut String, rules: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let message = rule["message"].as_str().or(rule["messageExpression"].as_str()).unwrap_or_default();
        rules.push((path.to_owned(), message.to_owned()));
    }
    let empty = Map::new();
    // A pod's own fields are described by Kubernetes; the schema names only those that a rule looks at.
    let described = schema["x-kubernetes-preserve-unknown-fields"] != true;
    for (name, field) in schema["properties"].as_object().unwrap_or(&empty) {
        let path = format!("{path}.{name}");
        let meaning =
            field["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        if described && !meaning.is_empty() {
            let (kind, default) = (type_of(field), default_of(&field["default"]));
            let _infallible = writeln!(rows, "| `{path}` | {kind} | {default} | {meaning} |");
        }
        walk(&path, field, rows, rules);
        walk(&format!("{path}[]"), &field["items"], rows, rules);
    }
}

fn type_of(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    if let Some(values) = field["enum"].as_array() {
        let names: Vec<_> = values.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect();
        return names.join(", ");
    }
    match field["type"].as_str() {
        Some("array") => format!("list of {}", type_of(&field["items"])),
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    }
}

/// Objects repeat the defaults of their fields, which have rows of their own.
fn default_of(default: &Value) -> String {
    if default.is_null() || default.is_object() { String::new() } else { format!("`{default}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_is_what_the_schema_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/roomcluster.md");
        let committed = std::fs::read_to_string(path).unwrap();
        let command =
            "cargo run -p roomcluster-crds --bin crdgen -- --reference > docs/reference/roomcluster.md";
        assert!(committed == reference().unwrap(), "{path} has drifted; run `{command}`");
    }
}
