use proptest::prelude::*;
use roost_core::id::{ActorId, Incarnation, JobId, MeshId, ProcId};

fn proc() -> impl Strategy<Value = ProcId> {
    any::<u64>().prop_filter_map("zero is nobody", ProcId::new)
}

fn mesh() -> impl Strategy<Value = MeshId> {
    any::<u64>().prop_filter_map("zero is nobody", MeshId::new)
}

proptest! {
    #[test]
    fn ids_print_and_parse_back(job: [u8; 16], proc in proc(), mesh in mesh(), slot: u32, incarnation: u32) {
        prop_assert_eq!(JobId(job).to_string().parse(), Ok(JobId(job)));
        prop_assert_eq!(proc.to_string().parse(), Ok(proc));
        prop_assert_eq!(mesh.to_string().parse(), Ok(mesh));
        let actor = ActorId { proc, mesh, slot };
        prop_assert_eq!(actor.to_string().parse(), Ok(actor));
        let incarnation = Incarnation(incarnation);
        prop_assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
    }

    #[test]
    fn what_parses_prints_the_same(text in "[#/a-f0-9procmesh-]{0,60}|\\PC{0,40}") {
        if let Ok(id) = text.parse::<JobId>() { prop_assert_eq!(id.to_string(), &*text); }
        if let Ok(id) = text.parse::<ProcId>() { prop_assert_eq!(id.to_string(), &*text); }
        if let Ok(id) = text.parse::<MeshId>() { prop_assert_eq!(id.to_string(), &*text); }
        if let Ok(id) = text.parse::<ActorId>() { prop_assert_eq!(id.to_string(), &*text); }
        if let Ok(id) = text.parse::<Incarnation>() { prop_assert_eq!(id.to_string(), &*text); }
    }
}
