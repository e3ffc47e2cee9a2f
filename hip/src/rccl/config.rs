//! The structure that a communicator is made with. Each version of the library knows another length of it, reads no more
//! than `size` says, and takes the members that `version` had.

use std::ffi::{CString, c_int};
use std::mem::offset_of;

use super::table::{NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclConfig_t};

/// What a communicator is made with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Calls wait until the work is under way. Else they return at once, and a start that hangs can be aborted.
    pub blocking: bool,
    /// What the library's own messages call it.
    pub name: Option<String>,
}

/// A configuration and the name that it points to.
pub(crate) struct Config {
    pub(crate) raw: ncclConfig_t,
    _name: Option<CString>,
}

/// The first version that has a configuration at all.
pub(crate) const FIRST: c_int = 21400;
/// The last whose members are all known here. Later libraries are told that the structure is of this version.
const KNOWN: c_int = 22700;

impl Config {
    /// For the version that the library reports; none for one that knows no configuration.
    pub(crate) fn of(options: &Options, version: c_int) -> Option<Self> {
        let size = size_for(version)?;
        let name = options
            .name
            .as_ref()
            .and_then(|name| CString::new(name.as_str()).ok());
        let unset = NCCL_CONFIG_UNDEF_INT;
        let raw = ncclConfig_t {
            size,
            magic: NCCL_API_MAGIC,
            version: version.min(KNOWN + 99).cast_unsigned(),
            blocking: c_int::from(options.blocking),
            cgaClusterSize: unset,
            minCTAs: unset,
            maxCTAs: unset,
            netName: std::ptr::null(),
            splitShare: unset,
            trafficClass: unset,
            commName: name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()),
            collnetEnable: unset,
            CTAPolicy: unset,
            shrinkShare: unset,
            nvlsCTAs: unset,
        };
        Some(Self { raw, _name: name })
    }
}

/// How long the structure of a version is: up to its last member, and full words.
fn size_for(version: c_int) -> Option<usize> {
    let end = match version {
        ..FIRST => return None,
        FIRST..21700 => offset_of!(ncclConfig_t, cgaClusterSize),
        21700..21800 => offset_of!(ncclConfig_t, splitShare),
        21800..KNOWN => offset_of!(ncclConfig_t, commName),
        KNOWN.. => size_of::<ncclConfig_t>(),
    };
    Some(end.next_multiple_of(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_gets_the_length_that_it_knows() {
        let sizes: Vec<_> = [21304, 21400, 21703, 21805, 22605, 22707, 22907, 23203]
            .map(size_for)
            .to_vec();
        assert_eq!(
            sizes,
            [
                None,
                Some(24),
                Some(40),
                Some(48),
                Some(48),
                Some(72),
                Some(72),
                Some(72)
            ]
        );
    }

    #[test]
    fn a_later_library_is_told_the_version_that_is_known() {
        let options = Options {
            blocking: false,
            name: Some("trainers".to_owned()),
        };
        let late = Config::of(&options, 23203).expect("it has one");
        assert_eq!((late.raw.version, late.raw.blocking), (22799, 0));
        let early = Config::of(&options, 22005).expect("it has one");
        assert_eq!((early.raw.version, early.raw.size), (22005, 48));
        assert!(Config::of(&options, 21304).is_none());
    }
}
