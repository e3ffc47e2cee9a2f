//! Certificates of the user's own.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use super::super::*;
use super::pairs::meet;
use super::{PREAMBLE, converse, door, shake};
use crate::limits::PKI_CHAIN_BYTES_MAX;

/// A private authority of a user's, and what it signs.
pub(super) struct Own {
    roots: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Own {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let roots = params.self_signed(&key).unwrap().pem();
        Self {
            roots,
            issuer: Issuer::new(params, key),
        }
    }

    fn issue(&self, names: &[&str], years: (i32, i32)) -> Pki {
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        Pki {
            roots: self.roots.clone().into_bytes(),
            chain: params.signed_by(&key, &self.issuer).unwrap().pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        }
    }

    pub(super) fn right(&self) -> Pki {
        self.issue(&["trainer-7", "10.0.0.7", "::1"], (2000, 4000))
    }
}

pub(super) fn with(pki: Pki, key: Option<JoinKey>) -> Door {
    Door::new(&DoorConfig {
        key,
        pki: Some(pki),
        plaintext: false,
    })
    .unwrap()
}

#[test]
fn an_own_pki_is_verified_as_usual() {
    let own = Own::new();
    let right = with(own.right(), None);
    for name in ["10.0.0.7", "trainer-7", "::1", "[::1]"] {
        converse(shake(
            right.dial(&PREAMBLE, name).unwrap(),
            right.accept(&PREAMBLE).unwrap(),
        ));
    }
    let errors = shake(
        right.dial(&PREAMBLE, "10.0.0.8").unwrap(),
        right.accept(&PREAMBLE).unwrap(),
    )
    .errors();
    assert!(
        matches!(errors, (TrustError::OtherName { ref expected }, _) if expected == "10.0.0.8"),
        "{errors:?}"
    );
    for years in [(1990, 2000), (3000, 4000)] {
        let late = with(own.issue(&["10.0.0.7"], years), None);
        let errors = meet(&right, &late).errors();
        assert!(matches!(errors.0, TrustError::OutOfDate), "{errors:?}");
        let errors = meet(&late, &right).errors();
        assert!(matches!(errors.1, TrustError::OutOfDate), "{errors:?}");
    }
    let other = with(Own::new().right(), None);
    let errors = meet(&right, &other).errors();
    assert!(matches!(errors.0, TrustError::OtherAuthority), "{errors:?}");
    let errors = meet(&door(None, false), &right).errors();
    assert!(
        matches!(
            errors,
            (TrustError::RefusedCertificate { .. }, TrustError::NoCertificate)
        ),
        "{errors:?}"
    );
}

/// As many roots as a system believes in do not make a handshake longer.
#[test]
fn many_roots_fit() {
    let own = Own::new();
    let mut pki = own.right();
    for _ in 0..150 {
        pki.roots.extend(Own::new().roots.into_bytes());
    }
    let door = with(pki, None);
    let ends = meet(&door, &door);
    assert!(ends.down.log.len() < 4 << 10, "{}", ends.down.log.len());
    converse(ends);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let own = Own::new();
    let right = own.right();
    let error = |pki: Pki| {
        let config = DoorConfig {
            pki: Some(pki),
            ..DoorConfig::default()
        };
        Door::new(&config).unwrap_err()
    };
    let wrong = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    for bytes in [Vec::new(), b"roots.pem".to_vec(), wrong.clone()] {
        let found = error(Pki {
            roots: bytes,
            ..right.clone()
        });
        assert!(
            matches!(found, TrustError::Pki { what: "roots", .. }),
            "{found:?}"
        );
    }
    let found = error(Pki {
        chain: right.key.clone(),
        ..right.clone()
    });
    assert!(
        matches!(found, TrustError::Pki { what: "chain", .. }),
        "{found:?}"
    );
    let found = error(Pki {
        key: right.chain.clone(),
        ..right.clone()
    });
    assert!(matches!(found, TrustError::Pki { what: "key", .. }), "{found:?}");
    let found = error(Pki {
        key: own.right().key,
        ..right.clone()
    });
    assert!(matches!(found, TrustError::Credentials(_)), "{found:?}");
    let found = error(Pki {
        chain: right.chain.repeat(PKI_CHAIN_BYTES_MAX / 256),
        ..right.clone()
    });
    assert!(matches!(found, TrustError::ChainTooLong { .. }), "{found:?}");
    let both = DoorConfig {
        pki: Some(right.clone()),
        plaintext: true,
        key: None,
    };
    assert!(matches!(
        Door::new(&both).unwrap_err(),
        TrustError::PkiInPlaintext
    ));
    let found = with(right, None).dial(&PREAMBLE, "no name").unwrap_err();
    assert!(matches!(found, TrustError::Name { .. }), "{found:?}");
}
