//! Who may talk to a node.

use anyhow::{Context, Result, ensure};
use e2e::lounge::{Lounge, NAME};
use e2e::site::{Site, ip_of};
use e2e::suite::{Company, on_site};
use roomcluster_crds::names;
use roomcluster_proto::node::v1::node_service_client::NodeServiceClient;
use roomcluster_proto::node::v1::{GetNodeRequest, RoomsOwnedByRequest, SetOrderRequest};
use roomcluster_proto::peer::v1::ExecuteRequest;
use roomcluster_proto::peer::v1::peer_service_client::PeerServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

#[tokio::test]
async fn node_and_peer_calls_without_the_right_token_are_refused() {
    on_site("tokens", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default().replicas(1)).await?;
        let pod = site.pods().await?.into_iter().next().context("there is no pod")?;
        let channel =
            Channel::from_shared(format!("http://{}:{}", ip_of(&pod)?, names::GRPC_PORT))?.connect().await?;

        for token in [None, Some("Bearer "), Some("Bearer wrong"), Some("wrong")] {
            for (call, outcome) in call_all(&channel, token).await? {
                let code = outcome.err().map(|status| status.code());
                ensure!(code == Some(Code::Unauthenticated), "{call} with {token:?} answered {code:?}");
            }
        }

        let secret = [
            "get",
            "secret",
            &names::token_secret_name(NAME),
            "-o",
            "go-template={{.data.token | base64decode}}",
        ];
        let right = format!("Bearer {}", site.kubectl.run(&secret).await?.trim());
        for (call, outcome) in call_all(&channel, Some(&right)).await? {
            let code = outcome.err().map(|status| status.code());
            ensure!(code != Some(Code::Unauthenticated), "{call} was refused with the right token");
        }
        Ok(())
    })
    .await;
}

/// Every call that needs a token.
async fn call_all(channel: &Channel, token: Option<&str>) -> Result<Vec<(&'static str, Result<(), Status>)>> {
    let mut node = NodeServiceClient::new(channel.clone());
    let mut peer = PeerServiceClient::new(channel.clone());
    Ok(vec![
        ("GetNode", node.get_node(with(token, GetNodeRequest::default())?).await.map(drop)),
        // An order for another pod: refused also with the right token, for that reason.
        ("SetOrder", node.set_order(with(token, SetOrderRequest::default())?).await.map(drop)),
        ("RoomsOwnedBy", node.rooms_owned_by(with(token, RoomsOwnedByRequest::default())?).await.map(drop)),
        ("Execute", peer.execute(with(token, ExecuteRequest::default())?).await.map(drop)),
    ])
}

fn with<T>(token: Option<&str>, message: T) -> Result<Request<T>> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", token.parse().context("a token that is no header")?);
    }
    Ok(request)
}
