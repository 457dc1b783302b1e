//! One module per process role, thin.
