//! What a delivery means for the room: the transitions of the specification's outbox, as a report.
//!
//! Pure. `delivering → delivered` only for what the sink confirmed; `→ retryable` for what was refused, unknown or
//! not sent; `→ failed` only for what is proven to be bad. Infrastructure errors never lead to `failed`, however
//! often they come.

use std::time::Duration;

use rand::RngExt;

use super::config::{BadEventPolicy, OutboxConfig};
use super::event::EventPosition;
use super::pace::backoff;
use super::sink::{Delivery, Stop};
use super::store::{ClaimedRoom, Next, RoomReport};

/// What was done with a claimed room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// Its events were offered to the sink.
    Tried(Delivery),
    /// Nothing was sent: the worker ends, or its lease did.
    Untried,
}

/// The rules by which a room is judged.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// What a bad event means for the later ones.
    pub bad_events: BadEventPolicy,
    /// Shortest and longest back-off.
    pub backoff: (Duration, Duration),
    /// In the last pass of a worker that ends: when a room with more events is due again.
    pub due_again_ms: Option<i64>,
}

impl Rules {
    /// The rules that were configured.
    pub fn new(config: &OutboxConfig, due_again_ms: Option<i64>) -> Self {
        Self { bad_events: config.bad_events, backoff: config.backoff, due_again_ms }
    }
}

/// Makes the report of a room.
pub fn report(room: &ClaimedRoom, sent: &Sent, rules: &Rules, rng: &mut impl RngExt) -> RoomReport {
    let mut positions: Vec<EventPosition> = room.events.iter().map(|event| event.position).collect();
    let mut report = RoomReport {
        room: room.room.clone(),
        delivered: Vec::new(),
        failed: None,
        retryable: Vec::new(),
        error: None,
        next: rules.due_again_ms.map_or(Next::Now, Next::Due),
        recount: positions.is_empty(),
    };
    let delivery = match sent {
        Sent::Untried if report.recount => return report,
        Sent::Untried => {
            (report.retryable, report.next) = (positions, Next::Untried);
            return report;
        }
        Sent::Tried(delivery) => delivery,
    };
    let mut rest = positions.split_off(delivery.delivered.min(positions.len()));
    report.delivered = positions;
    match &delivery.stop {
        None if rest.is_empty() => {}
        None => report.next = Next::Untried,
        Some(Stop::Retry(error) | Stop::Unknown(error)) => {
            report.error = Some(error.clone());
            let attempts = if report.delivered.is_empty() { room.attempts } else { 1 };
            report.next = Next::After(backoff(attempts, rules.backoff.0, rules.backoff.1, rng));
        }
        Some(Stop::Bad(error)) if !rest.is_empty() => {
            report.failed = Some((rest.remove(0), error.clone()));
            if rules.bad_events == BadEventPolicy::Block {
                report.next = Next::Blocked;
            }
        }
        Some(Stop::Bad(_)) => {}
    }
    report.retryable = rest;
    report
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::outbox::testing::event;
    use crate::types::RoomKey;

    fn room(events: u64, attempts: u32) -> ClaimedRoom {
        ClaimedRoom {
            room: RoomKey::new("app", "room").unwrap(),
            attempts,
            lost_claims: 0,
            more: false,
            events: (1..=events).map(|seq| event("app", "room", seq, 0)).collect(),
        }
    }

    fn judge(room: &ClaimedRoom, sent: &Sent, bad_events: BadEventPolicy) -> RoomReport {
        let ms = Duration::from_millis;
        let rules = Rules { bad_events, backoff: (ms(200), ms(30_000)), due_again_ms: None };
        report(room, sent, &rules, &mut StdRng::seed_from_u64(1))
    }

    #[test]
    fn what_was_confirmed_leaves_and_the_rest_waits_behind_the_first_failure() {
        let sent = Sent::Tried(Delivery::stopped(2, Stop::Retry("down".to_owned())));
        let report = judge(&room(5, 7), &sent, BadEventPolicy::SetAside);
        assert_eq!((report.delivered.len(), report.retryable.len()), (2, 3));
        assert_eq!(report.error.as_deref(), Some("down"));
        assert!(matches!(report.next, Next::After(pause) if pause <= Duration::from_millis(200)));
    }

    #[test]
    fn no_infrastructure_error_ever_leads_to_failed() {
        for attempts in [1, 100, u32::MAX] {
            for stop in [Stop::Retry("x".to_owned()), Stop::Unknown("x".to_owned())] {
                let sent = Sent::Tried(Delivery::stopped(0, stop));
                let report = judge(&room(3, attempts), &sent, BadEventPolicy::SetAside);
                assert_eq!((report.failed, report.retryable.len()), (None, 3));
            }
        }
    }

    #[test]
    fn a_bad_event_is_set_aside_or_blocks_its_room_as_configured() {
        let sent = Sent::Tried(Delivery::stopped(1, Stop::Bad("broken".to_owned())));
        for (policy, next) in [(BadEventPolicy::SetAside, Next::Now), (BadEventPolicy::Block, Next::Blocked)]
        {
            let report = judge(&room(3, 1), &sent, policy);
            assert_eq!(report.failed.as_ref().map(|(position, _)| position.seq.0), Some(2));
            assert_eq!((report.delivered.len(), report.retryable.len(), report.next), (1, 1, next));
        }
    }

    #[test]
    fn a_room_that_was_not_tried_is_given_back_without_a_mark() {
        let report = judge(&room(3, 1), &Sent::Untried, BadEventPolicy::SetAside);
        assert_eq!((report.retryable.len(), report.error, report.next), (3, None, Next::Untried));
        assert!(judge(&room(0, 1), &Sent::Untried, BadEventPolicy::SetAside).recount);
    }

    proptest! {
        #[test]
        fn every_event_of_a_claim_is_accounted_for_once(
            events in 1_u64..20, delivered in 0_usize..25, kind in 0..5, attempts in 0_u32..40,
        ) {
            let stop = [
                None,
                Some(Stop::Retry("x".to_owned())),
                Some(Stop::Unknown("x".to_owned())),
                Some(Stop::Bad("x".to_owned())),
            ];
            let sent = match stop.get(kind as usize) {
                Some(stop) => Sent::Tried(Delivery { delivered, stop: stop.clone() }),
                None => Sent::Untried,
            };
            let room = room(events, attempts);
            let report = judge(&room, &sent, BadEventPolicy::SetAside);
            let mut named = report.delivered.clone();
            named.extend(report.failed.iter().map(|(position, _)| *position));
            named.extend(&report.retryable);
            let all: Vec<_> = room.events.iter().map(|event| event.position).collect();
            prop_assert_eq!(named, all);
        }
    }
}
