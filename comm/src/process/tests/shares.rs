//! Bytes between processes: all-reduces travel as shares.
use super::super::connection::Connection;
use super::super::frame::{encoded, send_frame};
use super::super::shares::{ArrivedShares, SumName};
use super::strangers::mutated;
use super::*;
use std::io::{self, Cursor, Read};
use std::net::Shutdown;
use std::sync::Mutex;

/// Kills: elements that go to a rank that does not take them, or twice, such as all addends of an all-reduce
/// to all ranks; small calls that are described at length each time, or to ranks outside of their group.
#[test]
fn connections_carry_the_bytes_of_the_ledger() {
    for (ranks, [large, small]) in [2, 3, 4, 8].into_iter().flat_map(|n| [(n, [1, 0]), (n, [0, 50])]) {
        let run = |processes: Arc<Processes>| {
            let program = |device: Cpu<f32>, mesh: Mesh<Host>| {
                let before = mesh.ledger();
                let elements = |n| Tensor::from_fn(&device, Category::Buffers, 1, n, |i| i as f32);
                for _ in 0..large {
                    let mut sum = elements(60_000);
                    mesh.world().all_reduce(&mut sum, Reduce::Sum)?;
                    let started = mesh.world().start_all_reduce(elements(30_000), Reduce::Sum)?;
                    mesh.world().all_gather(&elements(10_000))?;
                    started.wait()?;
                }
                for _ in 0..small {
                    let mut sum = elements(5);
                    mesh.world().all_reduce(&mut sum, Reduce::Sum)?;
                    mesh.world().all_gather(&elements(2))?;
                    mesh.world().barrier()?;
                }
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
        let most = 1.02 * wire as f64 + if small > 0 { 256.0 } else { 1024.0 } * calls as f64;
        assert!(sent as f64 <= most && sent >= wire, "{ranks} ranks: {sent} {wire} {calls}");
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

/// Kills: a share of another length that is taken, and memory beyond its end that is read or written.
#[test]
fn a_share_has_the_length_of_its_range() {
    let errors = each(3, |processes| {
        let program = |device: Cpu<f32>, mesh: Mesh<Host>| {
            if mesh.rank() == 1 {
                let first = SumName { members: [0, 1, 2].into(), number: 2 };
                processes.shares().give(&first, &vec![7; 12].into());
            }
            mesh.world().all_reduce(&mut ones(&device, 1000), Reduce::Sum)
        };
        let world = World::threads(&[(Axis::Dp, 3)]).unwrap().limit(LIMIT);
        world.over(&processes).unwrap().run(program).unwrap_err()
    });
    for error in errors {
        assert!(error.rank == 1, "{error}");
        assert!(
            error.reason.starts_with("its process sent 12 bytes for all_reduce(sum) over dp of"),
            "{error}"
        );
    }
}

/// A connection on which these bytes arrive.
struct Said(Mutex<Cursor<Vec<u8>>>);

impl Connection for Said {
    fn send(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap().read(to)
    }
    fn limit(&self, _: [Option<Duration>; 2]) -> io::Result<()> {
        Ok(())
    }
    fn close(&self, _: Shutdown) {}
}

/// Kills: a name or a length that another process sends and that is used unchecked: a panic, a hang, memory
/// that is allocated before its bytes arrive.
#[test]
fn changed_shares_are_refused_or_have_another_name() {
    let name = |number| SumName { members: [0, 1, 2].into(), number };
    let mut said = Vec::new();
    for number in 0..4 {
        send_frame(&mut said, &encoded(&(name(number), 400usize)), &[vec![number as u8; 400].into()])
            .unwrap();
    }
    let taken = |said: Vec<u8>| {
        let connection: Arc<dyn Connection> = Arc::new(Said(Mutex::new(Cursor::new(said))));
        let mut arrived = ArrivedShares::new(&connection);
        let mut share = vec![0; 400];
        let mut read = |len, from: &mut dyn Read| {
            if len == 400 { from.read_exact(&mut share) } else { Err(io::ErrorKind::InvalidData.into()) }
        };
        arrived.take(&name(3), &mut || false, &mut read).map(|()| share)
    };
    assert_eq!(taken(said.clone()).unwrap(), vec![3; 400]);
    let refused = (0..2000).filter(|seed| taken(mutated(&said, *seed)).is_err()).count();
    assert!((500..2000).contains(&refused), "{refused}");
}
