//! What the user wrote that shapes a pod, and its hash.
//!
//! The hash is the revision. It covers what the user writes and nothing that the operator adds, so another
//! version of the operator rolls nothing. To keep that so, a field that is added to one of these types
//! must leave itself out of the JSON while it is at its default; a test pins the hash of one recipe.

use roomcluster_crds::{Database, Outbox, PodTemplate, Redis, RoomClusterSpec, Shutdown};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::Revision;

/// Hexadecimal digits of a hash in names and labels: 40 bits tell any number of revisions of one cluster apart.
const HASH_DIGITS: usize = 10;

/// The fields of a spec that shape its pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recipe {
    /// The pod that the user wrote.
    pub template: PodTemplate,
    /// Where the database is.
    pub database: Database,
    /// Where Redis is.
    pub redis: Redis,
    /// How events leave the pod.
    #[serde(default)]
    pub outbox: Outbox,
    /// Budgets of the pod's shutdown.
    #[serde(default)]
    pub shutdown: Shutdown,
}

impl Recipe {
    /// The recipe that a spec asks for.
    #[must_use]
    pub fn of(spec: &RoomClusterSpec) -> Self {
        Self {
            template: spec.template.clone(),
            database: spec.database.clone(),
            redis: spec.redis.clone(),
            outbox: spec.outbox.clone(),
            shutdown: spec.shutdown,
        }
    }

    /// The revision of pods made from this recipe.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::new(short_hash(&self.to_json()))
    }

    /// The grace period that a pod of this recipe needs, in seconds.
    #[must_use]
    pub fn grace_seconds(&self) -> u32 {
        self.shutdown.grace_seconds(self.outbox.mode)
    }

    pub(super) fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a recipe has string keys and plain values only")
    }
}

/// A short hash of a value: equal for values that differ only in the order of keys or in nulls.
pub(super) fn short_hash(value: &Value) -> String {
    let mut canonical = String::new();
    write_canonical(value, &mut canonical);
    blake3::hash(canonical.as_bytes()).to_hex()[..HASH_DIGITS].to_owned()
}

/// Writes JSON without spaces, with sorted keys, and without keys whose value is null.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_unstable_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&value.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use roomcluster_crds::{OutboxMode, RoomCluster};
    use serde_json::json;

    use super::super::fixture;
    use super::*;

    /// Changing this constant rolls every pod of every cluster at the next upgrade of the operator.
    const PINNED_HASH: &str = "a3a9d640a3";

    type Edit = fn(&mut RoomCluster);

    fn revision_after(edit: impl FnOnce(&mut RoomCluster)) -> Revision {
        let mut cluster = fixture::cluster();
        edit(&mut cluster);
        Recipe::of(&cluster.spec).revision()
    }

    #[test]
    fn an_upgrade_of_the_operator_rolls_nothing() {
        assert_eq!(revision_after(|_| ()).as_str(), PINNED_HASH);
    }

    #[test]
    fn what_shapes_the_pod_makes_another_revision() {
        let unchanged = revision_after(|_| ());
        let edits: [(&str, Edit); 7] = [
            ("image", |c| c.spec.template.spec.0["containers"][0]["image"] = json!("example/dataplane:v3")),
            ("label", |c| drop(c.spec.template.metadata.labels.insert("team".into(), "b".into()))),
            ("annotation", |c| {
                drop(c.spec.template.metadata.annotations.insert("restarted".into(), "1".into()))
            }),
            ("database", |c| c.spec.database.url_secret_ref.name = "other".into()),
            ("redis", |c| c.spec.redis.url_secret_ref.key = "other".into()),
            ("outbox", |c| c.spec.outbox.mode = OutboxMode::InProcess),
            ("shutdown", |c| c.spec.shutdown.timeout_seconds = 31),
        ];
        for (what, edit) in edits {
            assert_ne!(revision_after(edit), unchanged, "{what}");
        }
    }

    #[test]
    fn what_only_steers_the_operator_rolls_nothing() {
        let unchanged = revision_after(|_| ());
        let edits: [(&str, Edit); 5] = [
            ("replicas", |c| c.spec.replicas = 9),
            ("upgrade", |c| c.spec.upgrade.rolling_update.partition = 2),
            ("drain", |c| c.spec.drain.respond.clear()),
            ("paused", |c| c.spec.paused = true),
            ("history", |c| c.spec.revision_history_limit = 1),
        ];
        for (what, edit) in edits {
            assert_eq!(revision_after(edit), unchanged, "{what}");
        }
    }

    #[test]
    fn the_order_of_keys_and_nulls_do_not_matter_but_empty_values_do() {
        let hash = |text: &str| short_hash(&serde_json::from_str(text).unwrap());
        assert_eq!(hash(r#"{"a":1,"b":{"c":[1,2],"d":null}}"#), hash(r#"{"b":{"c":[1,2]},"a":1}"#));
        assert_ne!(hash(r#"{"emptyDir":{}}"#), hash("{}"));
        assert_ne!(hash("[1,2]"), hash("[2,1]"));
        assert_ne!(hash(r#"{"a":"1"}"#), hash(r#"{"a":1}"#));
    }
}
