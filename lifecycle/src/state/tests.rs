use super::*;

fn lifecycle() -> Lifecycle {
    Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new())
}

#[test]
fn a_state_never_goes_back() {
    use State::{Draining, Running, Starting, Stopped};
    for from in [Starting, Running, Draining, Stopped] {
        for to in [Starting, Running, Draining, Stopped] {
            if from.may_become(to) {
                assert!(to > from, "{from} -> {to}");
            }
        }
    }
    assert!(!Starting.may_become(Stopped) && !Running.may_become(Stopped), "nothing stops without a drain");
}

#[test]
fn running_comes_once_and_never_after_the_drain_began() {
    let lifecycle = lifecycle();
    lifecycle.mark_running().unwrap();
    let again = lifecycle.mark_running().unwrap_err();
    assert_eq!(again, IllegalTransition { from: State::Running, to: State::Running });

    lifecycle.begin_drain(DrainCause::Signal(Signal::Term));
    let late = lifecycle.mark_running().unwrap_err();
    assert_eq!(late.to_string(), "a process that is draining cannot become running");
}

#[test]
fn a_process_that_is_told_to_end_while_it_starts_drains_at_once() {
    let lifecycle = lifecycle();
    assert!(lifecycle.begin_drain(DrainCause::Signal(Signal::Term)));
    assert_eq!(lifecycle.state(), State::Draining);
    lifecycle.mark_stopped().unwrap();
    assert_eq!(lifecycle.state(), State::Stopped);
}

#[test]
fn the_first_cause_of_a_drain_is_the_one_that_counts() {
    let lifecycle = lifecycle();
    let ended = DrainCause::TaskEnded { task: "outbox", problem: "panicked".to_owned() };
    assert!(lifecycle.begin_drain(ended.clone()));
    assert!(!lifecycle.begin_drain(DrainCause::Signal(Signal::Term)));
    assert_eq!(lifecycle.drain_cause(), Some(&ended));
    assert!(lifecycle.drain_cause().unwrap().is_failure());
}

#[test]
fn signals_drain_then_hurry_then_force() {
    let lifecycle = lifecycle();
    lifecycle.mark_running().unwrap();
    assert_eq!(lifecycle.on_signal(Signal::Term), SignalEffect::Drain);
    assert!(lifecycle.draining().is_cancelled() && !lifecycle.hurry().is_cancelled());
    assert_eq!(lifecycle.on_signal(Signal::Int), SignalEffect::Hurry);
    assert!(lifecycle.hurry().is_cancelled());
    assert_eq!(lifecycle.on_signal(Signal::Term), SignalEffect::Force);
    assert_eq!(lifecycle.drain_cause(), Some(&DrainCause::Signal(Signal::Term)));
}

#[test]
fn an_evacuation_can_be_withdrawn_and_a_drain_cannot() {
    let lifecycle = lifecycle();
    lifecycle.mark_running().unwrap();
    assert!(lifecycle.set_evacuating(true));
    assert!(!lifecycle.set_evacuating(true), "a repeated order changes nothing");
    assert!(!lifecycle.accepts_work());
    assert!(lifecycle.set_evacuating(false));
    assert!(lifecycle.accepts_work());

    lifecycle.on_signal(Signal::Term);
    assert!(!lifecycle.set_evacuating(true));
    assert!(!lifecycle.accepts_work());
}

#[test]
fn the_metric_tells_evacuating_from_draining() {
    let lifecycle = lifecycle();
    let shows = |kind: &str, value: u8| {
        let line = format!("service_draining{{service=\"room-service\",kind=\"{kind}\"}} {value}\n");
        let text = lifecycle.metrics().encode();
        assert!(text.contains(&line), "{line} not in {text}");
    };
    lifecycle.mark_running().unwrap();
    shows("evacuating", 0);
    shows("draining", 0);
    lifecycle.set_evacuating(true);
    shows("evacuating", 1);
    shows("draining", 0);
    lifecycle.on_signal(Signal::Term);
    shows("evacuating", 0);
    shows("draining", 1);
}

#[tokio::test]
async fn whoever_sees_draining_also_sees_its_cause() {
    let lifecycle = lifecycle();
    let mut view = lifecycle.subscribe();
    let seen = async {
        view.wait_for(|view| view.state == State::Draining).await.unwrap();
        lifecycle.drain_cause().is_some()
    };
    let (seen, _) = tokio::join!(seen, async { lifecycle.on_signal(Signal::Int) });
    assert!(seen);
}
