//! Local, forward or refuse.
