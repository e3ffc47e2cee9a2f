//! Properties of the public API: what goes in comes out, and no bytes can break it.

mod credit;
mod ids;
mod session;
mod wire;
