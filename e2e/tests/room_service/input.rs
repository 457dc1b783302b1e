//! What is refused, with which words.

use anyhow::Result;
use e2e::node::{Node, create, eventually, join, join_until_answered, reason, run_dataplane, scope};
use roomcluster_proto::node::v1 as node_pb;
use roomcluster_proto::node::v1::node_service_client::NodeServiceClient;
use roomcluster_proto::peer::v1 as peer_pb;
use roomcluster_proto::peer::v1::peer_service_client::PeerServiceClient;
use roomcluster_proto::rooms::v1 as pb;
use tonic::Code;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_operator_and_peers_need_the_node_token() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    for header in [None, Some("Bearer wrong"), Some("test-token-of-the-nodes")] {
        let mut order = tonic::Request::new(node_pb::GetNodeRequest {});
        let mut execute = tonic::Request::new(peer_pb::ExecuteRequest::default());
        if let Some(header) = header {
            order.metadata_mut().insert("authorization", header.parse()?);
            execute.metadata_mut().insert("authorization", header.parse()?);
        }
        let order = NodeServiceClient::new(a.channel()?).get_node(order).await.unwrap_err();
        let execute = PeerServiceClient::new(a.channel()?).execute(execute).await.unwrap_err();
        for status in [order, execute] {
            assert_eq!(
                (status.code(), reason(&status).as_str()),
                (Code::Unauthenticated, "NODE_TOKEN_REFUSED")
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_the_right_code_and_a_stable_reason_and_loses_nothing() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    let mut rooms = a.rooms()?;
    let long = "x".repeat(200);
    let bad = |app: &str, room: &str, id: &str| pb::JoinRoomRequest {
        scope: Some(pb::CommandScope { app_code: app.into(), room_id: room.into(), command_id: id.into() }),
        user_id: "ann".into(),
    };
    let table = [
        (bad("", "r", "c"), Code::InvalidArgument, "ID_MISSING"),
        (bad("app", "", "c"), Code::InvalidArgument, "ID_MISSING"),
        (bad("app", "r", ""), Code::InvalidArgument, "ID_MISSING"),
        (pb::JoinRoomRequest { scope: None, user_id: "ann".into() }, Code::InvalidArgument, "ID_MISSING"),
        (bad("app", &long, "c"), Code::InvalidArgument, "ID_TOO_LONG"),
        (bad("app", "r", &long), Code::InvalidArgument, "ID_TOO_LONG"),
        (bad("app", "r\0", "c"), Code::InvalidArgument, "ID_HAS_CONTROL_CHARACTER"),
        (bad("app", "r", "c\n"), Code::InvalidArgument, "ID_HAS_CONTROL_CHARACTER"),
        (bad("app", "nowhere", "c"), Code::NotFound, "ROOM_NOT_FOUND"),
    ];
    for (request, code, why) in table {
        let status = rooms.join_room(request.clone()).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (code, why), "{request:?}");
    }

    rooms.create_room(create("r")).await?;
    let huge = pb::JoinRoomRequest { scope: scope("r", "huge"), user_id: "x".repeat(1 << 20) };
    let status = rooms.join_room(huge).await.unwrap_err();
    assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");
    rooms.close_room(pb::CloseRoomRequest { scope: scope("r", "close"), user_id: "host".into() }).await?;
    let status = rooms.join_room(join("r", "ann")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "ROOM_CLOSED"));
    assert_eq!(stores.committed("r").await?, ["create", "close"]);
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_compared_as_bytes_end_to_end() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    for room in ["Room", "room", "room ", " room", "rööm", "ROOM"] {
        a.rooms()?.create_room(create(room)).await?;
        join_until_answered(&a, room, "ann").await?;
        join_until_answered(&a, room, "ann ").await?;
    }
    assert_eq!(stores.committed("room ").await?, ["create", "join-ann", "join-ann "]);
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_meets_another_schema_is_not_ready_and_says_so() -> Result<()> {
    let stores = Stores::unmigrated().await?;
    let mut a = Node::spawn(stores.spec("a"))?;
    eventually("the node names the schema", || async {
        a.admin("GET", "/healthz/ready").await.is_ok_and(|(status, body)| {
            status == 503 && body.contains("\"schema\"") && body.contains("dataplane migrate")
        })
    })
    .await?;
    stores.migrate().await?;
    a.wait_ready().await?;
    stores.migrate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_flags_end_the_process_with_the_flags_name_and_no_secret() -> Result<()> {
    let good = [
        ("NODE_ID", "a"),
        ("ADVERTISE_ADDR", "127.0.0.1:7400"),
        ("DATABASE_URL", "mysql://u:hunter2@127.0.0.1:1/x"),
        ("REDIS_URL", "redis://:hunter2@127.0.0.1:1"),
        ("NODE_TOKEN", "hunter2"),
        ("ADMIN_LISTEN", "127.0.0.1:0"),
    ];
    let table = [
        ("NODE_ID", "a\nb", "--node-id"),
        ("ADVERTISE_ADDR", "0.0.0.0:7400", "--advertise-addr"),
        ("ADVERTISE_ADDR", "nowhere", "--advertise-addr"),
        ("DATABASE_URL", "oracle://u:hunter2@h/x", "--database-url"),
        ("REDIS_URL", "http://:hunter2@h", "--redis-url"),
        ("LEASE_TTL", "soon", "--lease-ttl"),
        ("COMMIT_SESSIONS", "0", "--commit-sessions"),
    ];
    for (name, value, flag) in table {
        let env: Vec<_> = good.iter().copied().filter(|(n, _)| *n != name).chain([(name, value)]).collect();
        let output = run_dataplane(&["room"], &env).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{name}={value:?}: {said}");
        assert!(said.contains(flag), "{name}={value:?}: {said}");
        assert!(!said.contains("hunter2"), "{name}={value:?} shows a secret: {said}");
    }
    Ok(())
}
