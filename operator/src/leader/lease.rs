//! What to do about the Lease object that was read: a function of it and of how long it has stood.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::core::ObjectMeta;
use tokio::time::Instant;

/// The next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// There is no Lease yet.
    Create,
    /// It is ours, free, or expired.
    TakeOrRenew,
    /// Somebody else holds it.
    Wait,
}

/// Somebody else's Lease as it was last seen to change.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: Option<(String, Instant)>,
}

impl Watch {
    /// What to do about a Lease that was read at `now`.
    pub(super) fn decide(&mut self, lease: Option<&Lease>, me: &str, now: Instant) -> Next {
        let Some(lease) = lease else { return Next::Create };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder.is_empty() || holder == me {
            self.seen = None;
            return Next::TakeOrRenew;
        }
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let duration_secs = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let duration =
            Duration::from_secs(u64::try_from(duration_secs).unwrap_or(0)).max(super::LEASE_DURATION);
        match &self.seen {
            Some((seen, since)) if *seen == version => {
                if now.duration_since(*since) >= duration {
                    Next::TakeOrRenew
                } else {
                    Next::Wait
                }
            }
            Some(_) | None => {
                self.seen = Some((version, now));
                Next::Wait
            }
        }
    }
}

/// The Lease as it is to be written: held by `me`, and based on the version that was read, so that a write in
/// between makes this one fail.
pub(super) fn held_by(
    me: &str,
    now: Timestamp,
    duration: Duration,
    read: Option<&Lease>,
) -> impl Fn(&str) -> Lease + use<> {
    let before = read.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let is_mine = before.holder_identity.as_deref() == Some(me);
    let resource_version = read.and_then(|lease| lease.metadata.resource_version.clone());
    let me = me.to_owned();
    move |name| Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: resource_version.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(me.clone()),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            acquire_time: if is_mine { before.acquire_time.clone() } else { Some(MicroTime(now)) },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!is_mine)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str) -> Lease {
        let mut lease = held_by(holder, Timestamp::UNIX_EPOCH, Duration::from_secs(15), None)("op");
        lease.metadata.resource_version = Some(version.to_owned());
        lease
    }

    #[test]
    fn somebody_elses_lease_is_taken_only_after_it_stood_unchanged_for_its_duration() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut watch = Watch::default();
        assert_eq!(watch.decide(Some(&lease("other", "1")), "me", at(0)), Next::Wait);
        assert_eq!(watch.decide(Some(&lease("other", "1")), "me", at(14)), Next::Wait);
        assert_eq!(watch.decide(Some(&lease("other", "2")), "me", at(15)), Next::Wait, "it was renewed");
        assert_eq!(watch.decide(Some(&lease("other", "2")), "me", at(29)), Next::Wait);
        assert_eq!(watch.decide(Some(&lease("other", "2")), "me", at(30)), Next::TakeOrRenew);
    }

    #[test]
    fn a_missing_a_free_and_an_own_lease_are_written_at_once() {
        let mut watch = Watch::default();
        assert_eq!(watch.decide(None, "me", Instant::now()), Next::Create);
        assert_eq!(watch.decide(Some(&lease("", "1")), "me", Instant::now()), Next::TakeOrRenew);
        assert_eq!(watch.decide(Some(&lease("me", "1")), "me", Instant::now()), Next::TakeOrRenew);
    }

    #[test]
    fn a_write_names_the_version_that_was_read_and_counts_the_change_of_holder() {
        let read = lease("other", "7");
        let mine = held_by("me", Timestamp::UNIX_EPOCH, Duration::from_secs(15), Some(&read))("op");
        assert_eq!(mine.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(mine.spec.unwrap().lease_transitions, Some(2));
    }
}
