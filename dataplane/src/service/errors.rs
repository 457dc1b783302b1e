//! The one table from errors to gRPC statuses.
//!
//! Each status carries `google.rpc.ErrorInfo` with a stable reason, so that clients decide by it and never by
//! the text.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use roomcluster_lifecycle::{BoxError, ConfigError};

use crate::cell::CellError;
use crate::forward::RouteError;
use crate::logic::RejectKind;
use crate::store::connect::ConnectError;
use crate::types::InvalidId;

/// Domain of the reasons.
pub const DOMAIN: &str = "roomcluster.dev";
/// The request was meant for another node or process.
pub const WRONG_NODE: &str = "WRONG_NODE";

/// A store that cannot be opened: a wrong URL is the flag's fault, an unreachable server is not.
pub fn config_error(flag: &str, error: ConnectError) -> BoxError {
    match error {
        ConnectError::Url { .. } | ConnectError::OldServer { .. } => {
            Box::new(ConfigError::new(flag, error.to_string()))
        }
        ConnectError::Connect(_) | ConnectError::Migrate(_) => Box::new(error),
    }
}

/// A status with its reason.
pub fn status(code: Code, reason: &str, message: impl Into<String>) -> Status {
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new()))
}

/// The code of a rejection.
pub fn code_of(kind: RejectKind) -> Code {
    match kind {
        RejectKind::InvalidArgument => Code::InvalidArgument,
        RejectKind::NotFound => Code::NotFound,
        RejectKind::AlreadyExists => Code::AlreadyExists,
        RejectKind::FailedPrecondition => Code::FailedPrecondition,
        RejectKind::PermissionDenied => Code::PermissionDenied,
    }
}

/// Code and reason of whatever a route came to.
pub fn code_and_reason(error: &RouteError) -> (Code, String) {
    let (code, reason) = match error {
        RouteError::Cell(CellError::Rejected(rejection)) => {
            return (code_of(rejection.kind), rejection.reason.clone());
        }
        RouteError::Peer { code, reason, .. } => return (Code::from_i32(*code), reason.clone()),
        RouteError::Cell(CellError::Left) | RouteError::Moved(_) => (Code::Unavailable, "ROOM_MOVED"),
        RouteError::Cell(CellError::Busy) => (Code::ResourceExhausted, "ROOM_BUSY"),
        RouteError::Cell(CellError::TooLate) => (Code::DeadlineExceeded, "DEADLINE_PASSED"),
        RouteError::Cell(CellError::FencedOut) => (Code::Unavailable, "FENCED_OUT"),
        RouteError::Cell(CellError::CommandIdReused) => (Code::AlreadyExists, "COMMAND_ID_REUSED"),
        RouteError::Cell(CellError::DatabaseUnavailable) => (Code::Unavailable, "DATABASE_UNAVAILABLE"),
        RouteError::Cell(CellError::Broken(_)) => (Code::Internal, "ROOM_BROKEN"),
        RouteError::WrongNode => (Code::FailedPrecondition, WRONG_NODE),
        RouteError::NoSuccessor => (Code::Unavailable, "NO_SUCCESSOR"),
        RouteError::OwnerUnreachable => (Code::Unavailable, "OWNER_UNREACHABLE"),
    };
    (code, reason.to_owned())
}

/// A status for a client.
pub fn route_status(error: &RouteError) -> Status {
    let (code, reason) = code_and_reason(error);
    status(code, &reason, error.to_string())
}

/// A status for an id that is none.
pub fn invalid_id(error: &InvalidId) -> Status {
    let reason = match error {
        InvalidId::Missing { .. } => "ID_MISSING",
        InvalidId::TooLong { .. } => "ID_TOO_LONG",
        InvalidId::ControlCharacter { .. } => "ID_HAS_CONTROL_CHARACTER",
    };
    status(Code::InvalidArgument, reason, error.to_string())
}
