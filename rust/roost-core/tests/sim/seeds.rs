//! Which seeds a simulator runs, and which of them failed.

/// Says which seed of which test it was when a run fails.
pub(crate) struct Seed(pub(crate) u64, pub(crate) &'static str);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(seed, test) = self;
            eprintln!(
                "seed {seed} failed; again: ROOST_SIM_SEED={seed} cargo test --package roost-core --test {test}"
            );
        }
    }
}

/// A number that whoever runs the tests has given.
#[expect(
    clippy::disallowed_methods,
    reason = "which seeds to run is told by who runs the tests"
)]
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
    )
}
