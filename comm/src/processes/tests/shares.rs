//! Bytes between processes: all-reduces travel as shares.
use super::*;

/// Kills: elements that go to a rank that does not take them, or twice, such as all addends of an all-reduce
/// to all ranks.
#[test]
fn connections_carry_the_bytes_of_the_ledger() {
    for ranks in [2, 3, 4, 8] {
        let run = |processes: Arc<Processes>| {
            let program = |device: Cpu<f32>, mesh: Mesh<Host>| {
                let before = mesh.ledger();
                let elements = |n| Tensor::from_fn(&device, Category::Buffers, 1, n, |i| i as f32);
                let mut sum = elements(60_000);
                mesh.world().all_reduce(&mut sum, Reduce::Sum)?;
                let started = mesh.world().start_all_reduce(elements(30_000), Reduce::Sum)?;
                mesh.world().all_gather(&elements(10_000))?;
                started.wait()?;
                let ledger = mesh.ledger() - &before;
                let calls = ledger.iter().map(|(_, _, traffic)| traffic.calls).sum::<usize>();
                Ok::<_, CommError>([ledger.wire_bytes(), calls])
            };
            let world = World::threads(&[(Axis::Dp, ranks)]).unwrap().over(&processes).unwrap();
            let [wire, calls] = world.run(program).unwrap()[0];
            [processes.sent_bytes(), wire, calls]
        };
        let [sent, wire, calls] =
            each(ranks, run).into_iter().fold([0; 3], |sum, of| [0, 1, 2].map(|i| sum[i] + of[i]));
        println!("{ranks} ranks: {sent} bytes sent, {wire} in the ledger, {calls} calls");
        assert!(sent as f64 <= 1.02 * wire as f64 + 1024.0 * calls as f64 && sent >= wire, "{sent} {wire}");
    }
}

/// Kills: a share that its own rank has to send when it waits, or that lies behind that rank's later calls.
#[test]
fn a_share_waits_for_no_later_call_of_its_rank() {
    let program = |device: Cpu<f32>, mesh: Mesh<Host>| {
        let (world, tag) = (mesh.world(), Tag::new("later", 0));
        let sum = world.start_all_reduce(ones(&device, 1000), Reduce::Sum)?;
        if mesh.rank() == 1 {
            world.receive::<Cpu<f32>>(&device, 2, 1, 3, tag)?; // sent by a rank that has the sum
        }
        let sum = sum.wait()?;
        if mesh.rank() == 2 {
            world.send(1, &ones(&device, 3), tag)?;
        }
        Ok(sum.read().unwrap())
    };
    for sums in ran(&[(Axis::Dp, 3)], LIMIT, program) {
        assert_eq!(sums.unwrap(), [vec![3.0; 1000]]);
    }
}

/// Kills: a share that stays when it has been taken, a process that goes before all have its last share.
#[test]
fn all_have_all_shares_when_a_run_ends() {
    let program = |device: Cpu<f32>, mesh: Mesh<Host>| {
        let mut sum = ones(&device, 1 << 20);
        mesh.world().all_reduce(&mut sum, Reduce::Sum)?;
        Ok::<_, CommError>(sum.read().unwrap().iter().all(|x| *x == 4.0))
    };
    let world = World::threads(&[(Axis::Dp, 4)]).unwrap().limit(LIMIT);
    for _ in 0..4 {
        let ended = each(4, |processes| {
            let sums = world.clone().over(&processes).unwrap().run(program).unwrap();
            (sums, processes.shares().kept())
        });
        assert_eq!(ended, vec![(vec![true], 0); 4]);
    }
}
