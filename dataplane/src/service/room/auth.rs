//! Who may speak for the operator or for another node: whoever shows the node token.

use secrecy::{ExposeSecret, SecretString};
use tonic::service::Interceptor;
use tonic::{Code, Request, Status};

use crate::service::errors;

/// Refuses calls without the right `authorization: Bearer <node token>`.
#[derive(Clone)]
pub(super) struct NodeToken {
    token: SecretString,
}

impl NodeToken {
    pub(super) fn new(token: SecretString) -> Self {
        Self { token }
    }
}

impl Interceptor for NodeToken {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let shown = request.metadata().get("authorization").map(|value| value.as_bytes());
        let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        if same(shown, self.token.expose_secret().as_bytes()) {
            return Ok(request);
        }
        let message = "this call needs the cluster's node token as `authorization: Bearer`";
        Err(errors::status(Code::Unauthenticated, "NODE_TOKEN_REFUSED", message))
    }
}

/// Compares hashes, so that the time it takes tells nothing about the token.
fn same(shown: &[u8], token: &[u8]) -> bool {
    !token.is_empty() && blake3::hash(shown) == blake3::hash(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(token: &str, header: Option<&str>) -> Result<(), Status> {
        let mut request = Request::new(());
        if let Some(header) = header {
            request.metadata_mut().insert("authorization", header.parse().unwrap());
        }
        NodeToken::new(token.to_owned().into()).call(request).map(|_| ())
    }

    #[test]
    fn only_the_right_token_passes() {
        assert!(call("secret", Some("Bearer secret")).is_ok());
        for wrong in [None, Some("Bearer other"), Some("secret"), Some("Bearer "), Some("Bearer secret2")] {
            assert_eq!(call("secret", wrong).unwrap_err().code(), Code::Unauthenticated, "{wrong:?}");
        }
        assert!(call("", Some("Bearer ")).is_err(), "an empty token opens nothing");
    }
}
