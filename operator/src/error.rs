//! Sentences from errors, and which answers of the API server mean what.

use std::error::Error;
use std::iter;

/// The error and its causes as one sentence, for conditions, events and people.
#[must_use]
pub fn sentence(error: &dyn Error) -> String {
    let causes = iter::successors(error.source(), |error| (*error).source());
    let mut text = error.to_string();
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
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
