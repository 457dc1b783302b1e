use crate::test_log::capture;

#[test]
fn a_line_is_flat_and_names_the_process_and_the_fields() {
    let (_guard, log) = capture();
    tracing::warn!(rooms = 3, ratio = 0.5, held = true, who = "pod-a", left = -1, "rooms are left");
    let [line] = log.lines("rooms are left").try_into().unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["service"], "room-service");
    assert_eq!(line["node_id"], "node-1");
    assert_eq!(line["rooms"], 3);
    assert_eq!(line["ratio"], 0.5);
    assert_eq!(line["held"], true);
    assert_eq!(line["who"], "pod-a");
    assert_eq!(line["left"], -1);
    assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
}

#[test]
fn fields_of_spans_are_there_and_those_of_the_event_win() {
    let (_guard, log) = capture();
    let outer = tracing::info_span!("outer", shard = 1, epoch = 7).entered();
    let inner = tracing::info_span!("inner", shard = 2).entered();
    tracing::info!(epoch = 8, "moved");
    drop((inner, outer));
    let [line] = log.lines("moved").try_into().unwrap();
    assert_eq!(line["shard"], 2);
    assert_eq!(line["epoch"], 8);
}
