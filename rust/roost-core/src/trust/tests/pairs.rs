//! Every configuration against every other: those that are the same meet, all others are refused, and say why.

use super::super::*;
use super::pki::{Own, with};
use super::{Ends, PREAMBLE, converse, door, host, hosts, job, key, shake};

pub(super) fn meet(dialler: &Door, acceptor: &Door) -> Ends {
    shake(
        dialler.dial(&PREAMBLE, "10.0.0.7").unwrap(),
        acceptor.accept(&PREAMBLE).unwrap(),
    )
}

type Begin = Box<dyn Fn() -> (Handshake, Handshake)>;

fn every_configuration() -> Vec<(String, Begin)> {
    let mut all: Vec<(String, Begin)> = Vec::new();
    for plaintext in [false, true] {
        for key in [None, Some(key('a')), Some(key('b'))] {
            let label = format!("door, {key:?}, plaintext {plaintext}, {}", all.len());
            let door = door(key, plaintext);
            all.push((
                label,
                Box::new(move || {
                    (
                        door.dial(&PREAMBLE, "10.0.0.7").unwrap(),
                        door.accept(&PREAMBLE).unwrap(),
                    )
                }),
            ));
        }
        for number in [1, 2] {
            let [one, two] = hosts(number, plaintext);
            all.push((
                format!("lane of job {number}, plaintext {plaintext}"),
                Box::new(move || {
                    (
                        one.dial(&PREAMBLE, host(2)).unwrap(),
                        two.accept(&PREAMBLE).unwrap(),
                    )
                }),
            ));
        }
    }
    let (own, other) = (Own::new(), Own::new());
    for (label, pki, key) in [
        ("own PKI", own.right(), None),
        ("own PKI and a key", own.right(), Some(key('a'))),
        ("another PKI", other.right(), None),
    ] {
        let door = with(pki, key);
        all.push((
            label.to_owned(),
            Box::new(move || {
                (
                    door.dial(&PREAMBLE, "10.0.0.7").unwrap(),
                    door.accept(&PREAMBLE).unwrap(),
                )
            }),
        ));
    }
    all
}

#[test]
fn only_equal_configurations_meet() {
    let all = every_configuration();
    for (dialling, dial) in &all {
        for (accepting, accept) in &all {
            let ends = shake(dial().0, accept().1);
            if dialling == accepting {
                converse(ends);
                continue;
            }
            let (up, down) = (ends.up.log.clone(), ends.down.log.clone());
            assert!(
                ends.dialler.is_err() && ends.acceptor.is_err(),
                "{dialling} meets {accepting}"
            );
            let (dialler, acceptor) = ends.errors();
            let known =
                |error: &TrustError| error.is_authentication() || matches!(error, TrustError::OtherKind);
            assert!(
                known(&dialler) && known(&acceptor),
                "{dialling} against {accepting}: {dialler:?}, {acceptor:?}"
            );
            assert!(up.len() + down.len() < 8 << 10);
        }
    }
}

#[test]
fn another_key_is_told_to_both() {
    for plaintext in [false, true] {
        for other in [None, Some(key('b'))] {
            let ends = meet(&door(Some(key('a')), plaintext), &door(other, plaintext));
            assert!(matches!(
                ends.errors(),
                (TrustError::Refused, TrustError::OtherKey)
            ));
        }
    }
}

#[test]
fn plain_tcp_against_tls_is_told_to_both() {
    let (tls, plain) = (door(None, false), door(None, true));
    let errors = meet(&tls, &plain).errors();
    assert!(
        matches!(errors, (TrustError::NotTls, TrustError::PeerWantsTls)),
        "{errors:?}"
    );
    let errors = meet(&plain, &tls).errors();
    assert!(
        matches!(errors, (TrustError::PeerWantsTls, TrustError::NotTls)),
        "{errors:?}"
    );
}

#[test]
fn a_join_is_no_lane() {
    for plaintext in [false, true] {
        let (door, [one, two]) = (door(None, plaintext), hosts(1, plaintext));
        let pairs = [
            shake(
                door.dial(&PREAMBLE, "localhost").unwrap(),
                two.accept(&PREAMBLE).unwrap(),
            ),
            shake(
                one.dial(&PREAMBLE, host(2)).unwrap(),
                door.accept(&PREAMBLE).unwrap(),
            ),
        ];
        for ends in pairs {
            let errors = ends.errors();
            let expected = if plaintext {
                matches!(errors, (TrustError::Refused, TrustError::OtherKey))
            } else {
                matches!(errors, (TrustError::OtherKind, TrustError::OtherKind))
            };
            assert!(expected, "{errors:?}");
        }
    }
}

#[test]
fn a_lane_leads_to_the_host_that_was_named() {
    let [one, two] = hosts(1, false);
    let errors = shake(
        one.dial(&PREAMBLE, host(3)).unwrap(),
        two.accept(&PREAMBLE).unwrap(),
    )
    .errors();
    let (TrustError::OtherName { expected }, TrustError::RefusedCertificate { .. }) = errors else {
        panic!("{errors:?}");
    };
    assert_eq!(expected, host(3).to_string());
    let [one, two] = hosts(1, true);
    let ends = shake(
        one.dial(&PREAMBLE, host(3)).unwrap(),
        two.accept(&PREAMBLE).unwrap(),
    );
    assert!(matches!(
        ends.errors(),
        (TrustError::Refused, TrustError::OtherKey)
    ));
}

#[test]
fn a_changed_preamble_is_refused() {
    let mut changed = PREAMBLE;
    changed[52] ^= 1;
    for plaintext in [false, true] {
        let [one, two] = hosts(1, plaintext);
        let door = door(Some(key('a')), plaintext);
        let pairs = [
            shake(
                one.dial(&PREAMBLE, host(2)).unwrap(),
                two.accept(&changed).unwrap(),
            ),
            shake(
                door.dial(&PREAMBLE, "localhost").unwrap(),
                door.accept(&changed).unwrap(),
            ),
        ];
        for ends in pairs {
            assert!(matches!(
                ends.errors(),
                (TrustError::Refused, TrustError::OtherKey)
            ));
        }
    }
}

/// The secret and the authority of a job are no use without a certificate by it, on either side.
#[test]
fn a_certificate_of_another_job_is_refused() {
    let (job_of_us, other) = (Authority::new(job(1)).unwrap(), Authority::new(job(2)).unwrap());
    let ours = |number| Trust::new(&job_of_us.issue(host(number)).unwrap()).unwrap();
    let stranger = |number| {
        let stolen = other.issue(host(number)).unwrap();
        Trust::new(&Credentials {
            certificate: stolen.certificate,
            key: stolen.key,
            ..job_of_us.issue(host(number)).unwrap()
        })
        .unwrap()
    };
    let errors = shake(
        stranger(1).dial(&PREAMBLE, host(2)).unwrap(),
        ours(2).accept(&PREAMBLE).unwrap(),
    )
    .errors();
    assert!(
        matches!(
            errors,
            (TrustError::RefusedCertificate { .. }, TrustError::OtherAuthority)
        ),
        "{errors:?}"
    );
    let errors = shake(
        ours(1).dial(&PREAMBLE, host(2)).unwrap(),
        stranger(2).accept(&PREAMBLE).unwrap(),
    )
    .errors();
    assert!(
        matches!(
            errors,
            (TrustError::OtherAuthority, TrustError::RefusedCertificate { .. })
        ),
        "{errors:?}"
    );
}
