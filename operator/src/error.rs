//! Sentences from errors, and which answers of the API server mean what.

use std::error::Error;
use std::iter;

/// The error and its causes as one sentence, for conditions, events, logs and people.
///
/// It ends at an answer of the API server, which is a sentence already; its client only adds dumps to it.
#[must_use]
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for error in iter::successors(Some(error), |error| (*error).source()) {
        let answer = answer(error);
        let words = answer.map_or_else(|| error.to_string(), ToOwned::to_owned);
        if !text.contains(&words) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&words);
        }
        if answer.is_some() {
            break;
        }
    }
    text
}

fn answer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a str> {
    let boxed = error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref);
    match boxed.or_else(|| error.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) => Some(&status.message),
        Some(_) | None => None,
    }
}

/// The API server's own words, where it is its answer that failed the call.
#[must_use]
pub fn refusal(error: &kube::Error) -> Option<&str> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422) => Some(&status.message),
        _ => None,
    }
}

/// The object has changed, or is gone, or is there already: the plan was made for another world.
#[must_use]
pub fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("write the service")]
    struct Write(#[source] Box<kube::Error>);

    fn answered(code: u16) -> kube::Error {
        let status = Status { code, message: "no such namespace".to_owned(), ..Status::default() };
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn a_sentence_names_what_failed_and_then_the_servers_words_once() {
        assert_eq!(sentence(&Write(Box::new(answered(403)))), "write the service: no such namespace");
    }

    #[test]
    fn a_refusal_is_told_from_an_outdated_write_and_from_trouble_of_the_server() {
        assert_eq!(refusal(&answered(422)), Some("no such namespace"));
        assert_eq!(refusal(&answered(500)), None);
        assert!(is_outdated(&answered(409)) && is_outdated(&answered(404)) && !is_outdated(&answered(422)));
    }
}
