use roost_core::id::{Incarnation, JobId, ProcId};
use roost_core::wire::{Hello, HelloError, Resume, Version};

/// Any 64 bytes are read or refused; what is read is of our job and version, and is written as the same bytes.
pub fn hello(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        assert_eq!(Resume::decode(bytes).encode(), *bytes);
    }
    let Some(bytes) = data.first_chunk::<{ Hello::BYTES }>() else {
        return;
    };
    let ours = Hello {
        version: Version::ours((0, 1, 0), (3, 11)),
        job: JobId(std::array::from_fn(|at| {
            0xa0 + u8::try_from(at).expect("below 16")
        })),
        proc: ProcId::new(1).expect("not zero"),
        incarnation: Incarnation(0),
        to: None,
        link: None,
    };
    match Hello::decode(bytes, &ours) {
        Ok(theirs) => {
            assert_eq!(
                (theirs.job, theirs.version.protocol_major),
                (ours.job, ours.version.protocol_major)
            );
            let (written, mut read) = (theirs.encode(), *bytes);
            read[20..24].fill(0);
            if theirs.link.is_none() {
                read[60..].fill(0);
            }
            assert_eq!(written, read);
            let fits = theirs.expect(ours.proc, ours.incarnation).is_ok();
            assert_eq!(
                fits,
                (theirs.proc, theirs.incarnation) == (ours.proc, ours.incarnation)
            );
        }
        Err(HelloError::NotRoost { first }) => assert_ne!(first, *b"ROOST\r\n\x1a"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
