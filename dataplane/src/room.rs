//! The voice room: pure state, commands and events.
