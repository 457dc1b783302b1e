//! The Secret with the token of the node API.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use roomcluster_crds::names;

use super::Owner;

/// The Secret, made from 32 random bytes. It is made once and never changed: pods that run hold its value.
#[must_use]
pub fn build_token_secret(owner: &Owner, random: &[u8; 32]) -> Secret {
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Secret {
        metadata: owner.metadata(names::token_secret_name(owner.name())),
        data: Some(BTreeMap::from([(names::TOKEN_KEY.to_owned(), ByteString(token.into_bytes()))])),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The token that a Secret holds; none when it is missing, empty or no text.
#[must_use]
pub fn read_token(secret: &Secret) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(names::TOKEN_KEY)?;
    String::from_utf8(bytes.0.clone()).ok().filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn the_token_is_64_hexadecimal_digits_and_reads_back() {
        let mut random = [0_u8; 32];
        random[0] = 0xa5;
        let secret = build_token_secret(&fixture::owner(), &random);
        assert_eq!(secret.metadata.name.as_deref(), Some("lounge-node-token"));
        assert_eq!(secret.immutable, Some(true));
        assert_eq!(read_token(&secret), Some(format!("a5{}", "0".repeat(62))));
    }

    #[test]
    fn a_secret_without_a_token_gives_none_and_not_an_empty_one() {
        let mut secret = build_token_secret(&fixture::owner(), &[7; 32]);
        secret.data = Some(BTreeMap::from([(names::TOKEN_KEY.to_owned(), ByteString(Vec::new()))]));
        assert_eq!(read_token(&secret), None);
        secret.data = None;
        assert_eq!(read_token(&secret), None);
    }
}
