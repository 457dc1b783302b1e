//! Reads the room count from a node's metrics.
//!
//! The pod's own address is asked, not a Service: endpoints lose pods that are not ready, and those are the
//! ones whose count matters.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prometheus_parse::{Scrape, Value};
use roomcluster_crds::names::ADMIN_PORT;
use tokio::time::timeout;

use crate::ids::{DrainEpoch, Incarnation, PodUid};
use crate::plan::RoomSample;

/// The whole scrape, connection included.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// A node's metrics are some ten KiB; more than this is not a node.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
const METRIC: &str = "room_leases";

/// Why there is no room count.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// The request could not be made.
    #[error("build the request")]
    BuildRequest(#[source] http::Error),
    /// No answer in time.
    #[error("no answer within {} ms", SCRAPE_TIMEOUT.as_millis())]
    TimedOut,
    /// The connection or the answer failed.
    #[error("get the metrics")]
    Get(#[source] hyper_util::client::legacy::Error),
    /// The body broke off, or was too long.
    #[error("read the metrics")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another status than 200.
    #[error("the metrics answered {0}")]
    Status(StatusCode),
    /// The body is no metrics text.
    #[error("parse the metrics")]
    Parse(#[source] std::io::Error),
    /// The one series is missing, doubled or without its labels.
    #[error("{0} series of {METRIC} that name a pod, an epoch and an incarnation, instead of one")]
    Series(usize),
}

/// Scrapes nodes.
#[derive(Clone, Debug)]
pub struct Scraper {
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Default for Scraper {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(SCRAPE_TIMEOUT));
        connector.set_nodelay(true);
        Self { client: Client::builder(TokioExecutor::new()).build(connector) }
    }
}

impl Scraper {
    /// The count that the node at this address reports now.
    ///
    /// # Errors
    /// When there is no answer in time, or none that names pod, epoch and incarnation.
    pub async fn rooms(&self, ip: IpAddr) -> Result<RoomSample, ScrapeError> {
        let address = SocketAddr::new(ip, port());
        let request = Request::get(format!("http://{address}/metrics"))
            .header(header::ACCEPT, "application/openmetrics-text, text/plain")
            .body(Empty::new())
            .map_err(ScrapeError::BuildRequest)?;
        let get = async {
            let response = self.client.request(request).await.map_err(ScrapeError::Get)?;
            if response.status() != StatusCode::OK {
                return Err(ScrapeError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_BODY_BYTES);
            Ok(body.collect().await.map_err(ScrapeError::Read)?.to_bytes())
        };
        let body = timeout(SCRAPE_TIMEOUT, get).await.map_err(|_| ScrapeError::TimedOut)??;
        parse(&String::from_utf8_lossy(&body))
    }
}

fn port() -> u16 {
    u16::try_from(ADMIN_PORT).expect("the port is a constant below 65536")
}

/// Finds the one series in a metrics text.
fn parse(text: &str) -> Result<RoomSample, ScrapeError> {
    let lines = text.lines().filter(|line| line.starts_with(METRIC)).map(|line| Ok(line.to_owned()));
    let scrape = Scrape::parse(lines).map_err(ScrapeError::Parse)?;
    let mut samples: Vec<_> =
        scrape.samples.iter().filter(|sample| sample.metric == METRIC).filter_map(sample_of).collect();
    match (samples.len(), samples.pop()) {
        (1, Some(sample)) => Ok(sample),
        (series, _) => Err(ScrapeError::Series(series)),
    }
}

fn sample_of(sample: &prometheus_parse::Sample) -> Option<RoomSample> {
    let (Value::Gauge(rooms) | Value::Untyped(rooms) | Value::Counter(rooms)) = sample.value else {
        return None;
    };
    let label = |name| sample.labels.get(name).filter(|value| !value.is_empty());
    Some(RoomSample {
        uid: PodUid::new(label("pod_uid")?),
        epoch: DrainEpoch::new(label("drain_epoch")?.parse().ok()?),
        incarnation: Incarnation::new(label("incarnation")?),
        rooms: whole(rooms)?,
    })
}

/// A count: whole, not negative, and not so large that a float loses rooms.
fn whole(rooms: f64) -> Option<u64> {
    const MAX: f64 = 9_007_199_254_740_992.0;
    let is_count = (0.0..=MAX).contains(&rooms) && rooms.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just above")]
    is_count.then_some(rooms as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP room_leases Rooms held: owned, loading or releasing.
# TYPE room_leases gauge
room_leases{pod_uid="6f-1",drain_epoch="3",incarnation="i-9",node_id="lounge-x7"} 128
# HELP room_lease_release Leases released.
# TYPE room_lease_release counter
room_lease_release_total 4
# EOF
"#;

    #[test]
    fn the_count_is_read_with_what_ties_it_to_one_order_of_one_process() {
        let sample = parse(TEXT).unwrap();
        assert_eq!(sample.uid, PodUid::new("6f-1"));
        assert_eq!(sample.epoch, DrainEpoch::new(3));
        assert_eq!(sample.incarnation, Incarnation::new("i-9"));
        assert_eq!(sample.rooms, 128);
    }

    #[test]
    fn a_text_that_does_not_say_exactly_one_count_says_nothing() {
        for text in [
            "",
            "room_leases 0",
            "room_leases{pod_uid=\"\",drain_epoch=\"1\",incarnation=\"i\"} 0",
            "room_leases{pod_uid=\"u\",drain_epoch=\"x\",incarnation=\"i\"} 0",
            "room_leases{pod_uid=\"u\",drain_epoch=\"1\",incarnation=\"i\"} NaN",
            "room_leases{pod_uid=\"u\",drain_epoch=\"1\",incarnation=\"i\"} -1",
            "room_leases{pod_uid=\"u\",drain_epoch=\"1\",incarnation=\"i\"} 0.5",
            "room_leases_total{pod_uid=\"u\",drain_epoch=\"1\",incarnation=\"i\"} 0",
            "room_leases{pod_uid=\"u\",drain_epoch=\"1\",incarnation=\"i\"} 0\n\
             room_leases{pod_uid=\"u\",drain_epoch=\"2\",incarnation=\"i\"} 0",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
