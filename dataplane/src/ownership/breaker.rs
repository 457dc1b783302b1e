//! A lease store that is not asked while it does not answer.
//!
//! Redis is a hint, and a silent one must cost nothing: without this every commit and every look-up would wait for
//! its time-out. After a call that failed, all others fail at once; the readiness probe and the node's announcement
//! still go through, once a second or so, and the first of them that is answered lets the others through again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::lease::{LeaseError, LeaseStore, NodeFacts, RoutePut, RouteView, RouteWrite};
use crate::types::{Claim, Incarnation, NodeId, RoomKey};

/// The store behind a breaker.
pub struct Breaker {
    inner: Arc<dyn LeaseStore>,
    silent: AtomicBool,
}

impl Breaker {
    /// Lets calls through until one fails.
    pub fn new(inner: Arc<dyn LeaseStore>) -> Self {
        Self { inner, silent: AtomicBool::new(false) }
    }

    async fn unless_silent<T>(
        &self,
        call: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        if self.silent.load(Ordering::Acquire) {
            return Err(LeaseError { problem: "not asked, since it did not answer just now".to_owned() });
        }
        self.always(call).await
    }

    async fn always<T>(&self, call: impl Future<Output = Result<T, LeaseError>>) -> Result<T, LeaseError> {
        let result = call.await;
        self.silent.store(result.is_err(), Ordering::Release);
        result
    }
}

#[async_trait]
impl LeaseStore for Breaker {
    async fn probe(&self) -> Result<(), LeaseError> {
        self.always(self.inner.probe()).await
    }

    async fn put_routes(&self, writes: &[RouteWrite], ttl: Duration) -> Result<Vec<RoutePut>, LeaseError> {
        self.unless_silent(self.inner.put_routes(writes, ttl)).await
    }

    async fn routes(&self, rooms: &[RoomKey], ttl: Duration) -> Result<Vec<RouteView>, LeaseError> {
        self.unless_silent(self.inner.routes(rooms, ttl)).await
    }

    async fn remove_routes(&self, routes: &[(RoomKey, Claim)]) -> Result<u64, LeaseError> {
        self.unless_silent(self.inner.remove_routes(routes)).await
    }

    async fn announce(&self, facts: &NodeFacts, ttl: Duration) -> Result<(), LeaseError> {
        self.always(self.inner.announce(facts, ttl)).await
    }

    async fn withdraw(&self, node: &NodeId, incarnation: Incarnation) -> Result<(), LeaseError> {
        self.unless_silent(self.inner.withdraw(node, incarnation)).await
    }

    async fn node(&self, node: &NodeId) -> Result<Option<NodeFacts>, LeaseError> {
        self.unless_silent(self.inner.node(node)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeFacts>, LeaseError> {
        self.unless_silent(self.inner.nodes()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Fails while told to, and counts how often it is asked.
    #[derive(Default)]
    struct Flaky {
        fails: AtomicBool,
        asked: AtomicUsize,
    }

    impl Flaky {
        fn answer<T>(&self, answer: T) -> Result<T, LeaseError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.fails.load(Ordering::SeqCst) {
                Err(LeaseError { problem: "away".to_owned() })
            } else {
                Ok(answer)
            }
        }
    }

    #[async_trait]
    impl LeaseStore for Flaky {
        async fn probe(&self) -> Result<(), LeaseError> {
            self.answer(())
        }
        async fn put_routes(&self, _: &[RouteWrite], _: Duration) -> Result<Vec<RoutePut>, LeaseError> {
            self.answer(Vec::new())
        }
        async fn routes(&self, _: &[RoomKey], _: Duration) -> Result<Vec<RouteView>, LeaseError> {
            self.answer(Vec::new())
        }
        async fn remove_routes(&self, _: &[(RoomKey, Claim)]) -> Result<u64, LeaseError> {
            self.answer(0)
        }
        async fn announce(&self, _: &NodeFacts, _: Duration) -> Result<(), LeaseError> {
            self.answer(())
        }
        async fn withdraw(&self, _: &NodeId, _: Incarnation) -> Result<(), LeaseError> {
            self.answer(())
        }
        async fn node(&self, _: &NodeId) -> Result<Option<NodeFacts>, LeaseError> {
            self.answer(None)
        }
        async fn nodes(&self) -> Result<Vec<NodeFacts>, LeaseError> {
            self.answer(Vec::new())
        }
    }

    #[tokio::test]
    async fn a_silent_store_is_asked_by_the_probe_alone_until_it_answers() {
        let flaky = Arc::new(Flaky::default());
        let breaker = Breaker::new(Arc::clone(&flaky) as Arc<dyn LeaseStore>);
        flaky.fails.store(true, Ordering::SeqCst);
        for _ in 0..5 {
            assert!(breaker.nodes().await.is_err());
        }
        assert_eq!(flaky.asked.load(Ordering::SeqCst), 1, "only the first call waited");
        assert!(breaker.probe().await.is_err());
        flaky.fails.store(false, Ordering::SeqCst);
        assert!(breaker.nodes().await.is_err(), "nobody has heard of it yet");
        breaker.probe().await.unwrap();
        breaker.nodes().await.unwrap();
    }
}
