//! What the benches and the instruction counter share.
