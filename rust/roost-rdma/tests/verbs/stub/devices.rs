//! Which devices and ports are used, and for what.

use super::Stub;
use crate::bed::{pattern, read, write};
use roost_rdma::verbs::{Options, Path, Verbs};
use roost_rdma::{Direction, Run};

#[test]
fn two_nics_share_the_work() {
    let stub = Stub::new(&[("devices", 2)]);
    let bed = stub.bed();
    let mut owned = pattern(1, 16 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("works0", 0);
    stub.set("works1", 0);
    let mut target = vec![0; 16 << 20];
    read(&mut path, &mut target, 0, &published).unwrap();
    assert!(target == pattern(1, 16 << 20));
    let (one, two) = (stub.get("works0"), stub.get("works1"));
    assert!(
        one + two == 64 && one.abs_diff(two) <= 8,
        "{one} and {two} of 64 chunks"
    );
}

#[test]
fn a_port_that_is_down_is_left_out_and_comes_back() {
    let stub = Stub::new(&[("devices", 2), ("down", 2)]);
    let bed = stub.bed();
    assert_eq!(
        bed.asker.left_out(),
        ["stub1 port 1: its state is DOWN, not ACTIVE"]
    );
    assert_eq!(bed.path().0.device_names(), ["stub0"]);
    stub.set("down", 0);
    assert_eq!(bed.path().0.device_names(), ["stub0", "stub1"]);
    stub.set("down", 3);
    let error = stub.try_open(&[]).err().unwrap();
    assert!(
        error.contains("stub0 port 1: its state is DOWN") && error.contains("stub1 port 1"),
        "{error}"
    );
    assert!(
        Path::ask(&bed.asker, &bed.owner.card())
            .err()
            .unwrap()
            .to_string()
            .contains("ACTIVE")
    );
}

#[test]
fn devices_are_chosen_by_name() {
    let stub = Stub::new(&[("devices", 2)]);
    assert_eq!(stub.try_open(&["stub1"]).unwrap().devices()[0].name(), "stub1");
    let error = stub.try_open(&["mlx5_9"]).err().unwrap();
    assert!(
        error.contains("mlx5_9, which was asked for, is not on this host"),
        "{error}"
    );
}

#[test]
fn without_the_library_what_was_tried_is_said() {
    let options = Options {
        library: Some("/nowhere/libibverbs.so.1".into()),
        ..Options::default()
    };
    let error = Verbs::open(&options).err().unwrap().to_string();
    assert!(
        error.contains("/nowhere/libibverbs.so.1") && error.contains("apt-get install"),
        "{error}"
    );
    let options = Options {
        library: Some("libc.so.6".into()),
        ..Options::default()
    };
    let error = Verbs::open(&options).err().unwrap().to_string();
    assert!(error.contains("it has no ibv_get_device_list"), "{error}");
}

#[test]
fn a_device_that_cannot_read_writes_and_says_so() {
    let stub = Stub::new(&[("max_rd_atomic", 0)]);
    let bed = stub.bed();
    let mut owned = pattern(1, 100_000);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    assert!(!path.can_read());
    let mut local = pattern(2, 100_000);
    let run = Run {
        remote: 0,
        local: local.as_mut_ptr().expose_provenance(),
        bytes: 100_000,
    };
    // SAFETY: it is refused.
    let refused = unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("stub0 cannot read") && refused.contains("max_rd_atomic"),
        "{refused}"
    );
    write(&mut path, &mut local, 0, &published).unwrap();
    drop(published);
    assert!(owned == local);
}
