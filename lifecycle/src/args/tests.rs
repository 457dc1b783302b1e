use std::time::Duration;

use super::*;

#[derive(Parser, Debug)]
struct Args {
    #[arg(long, env = "LIFECYCLE_TEST_TIMEOUT", default_value = "30s", value_parser = positive_duration)]
    shutdown_timeout: Duration,
    #[arg(long, env = "LIFECYCLE_TEST_TOKEN", hide_env_values = true, value_parser = secret)]
    node_token: Option<String>,
    #[arg(long, value_parser = ["sidecar", "in-process"])]
    outbox_mode: Option<String>,
    #[arg(long)]
    node_id: String,
}

fn secret(text: &str) -> Result<String, String> {
    Err(format!("cannot read {text}"))
}

fn refused(words: &[&str]) -> String {
    let words = ["dataplane"].iter().chain(words).map(|word| (*word).to_owned());
    parse_from::<Args>(words).unwrap_err().to_string()
}

#[test]
fn durations_have_units() {
    for (text, millis) in
        [("500ms", 500), ("10s", 10_000), ("1m", 60_000), ("1m30s", 90_000), ("2h", 7_200_000), ("0s", 0)]
    {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "10", "s", "10 s", "1.5s", "-1s", "10sec", "10s5", "10µs"] {
        let error = duration(text).unwrap_err();
        assert_eq!(error, "write numbers with units, such as 500ms, 10s, 1m or 1m30s", "{text}");
    }
    assert_eq!(duration("18446744073709551615h").unwrap_err(), "the duration is too long");
    assert_eq!(positive_duration("0ms").unwrap_err(), "it must be longer than 0");
}

#[test]
fn a_bad_value_names_its_flag_and_says_what_to_write() {
    assert_eq!(
        refused(&["--node-id", "a", "--shutdown-timeout", "30"]),
        "--shutdown-timeout (or LIFECYCLE_TEST_TIMEOUT): \"30\": \
         write numbers with units, such as 500ms, 10s, 1m or 1m30s"
    );
    assert_eq!(
        refused(&["--node-id", "a", "--outbox-mode", "aside"]),
        "--outbox-mode: \"aside\": write one of sidecar, in-process"
    );
}

#[test]
fn a_secret_is_never_shown() {
    let error = refused(&["--node-id", "a", "--node-token", "hunter2"]);
    assert_eq!(
        error,
        "--node-token (or LIFECYCLE_TEST_TOKEN): the value is not valid (it is a secret and not shown)"
    );
}

#[test]
fn a_missing_and_an_unknown_flag_are_named() {
    assert_eq!(refused(&[]), "--node-id: a value is required");
    let unknown = refused(&["--node-idd=x"]);
    assert!(unknown.starts_with("--node-idd: unexpected argument found"), "{unknown}");
    let error = refused(&["--node-id"]);
    assert!(error.starts_with("--node-id: "), "{error}");
}

#[test]
fn a_configuration_error_decides_the_exit_code_wherever_it_stands_in_the_chain() {
    #[derive(Debug, thiserror::Error)]
    #[error("starting the sink")]
    struct Wrapped(#[source] ConfigError);
    let plain = ConfigError::new("--sink-url", "not a URL");
    assert_eq!(exit_of(&plain), Exit::BadConfig);
    assert_eq!(exit_of(&Wrapped(plain)), Exit::BadConfig);
    assert_eq!(exit_of(&std::io::Error::other("no")), Exit::Failed);
    assert_eq!(Exit::BadConfig.code(), 64);
}
