//! Ranks as processes: every strategy computes among them, over TCP, what it computes among threads. Each
//! process of these tests is a thread with its own connections and its own world.
use crate::strategies::{Adds, Newcomer, listed};
use comm::{Launch, Processes, RunInputs};
use ops::{ADAMW, RandomValues};
use parallel::{Layout, Network, Scheme, Trainer, session};
use prove::cases::certify_panel;
use prove::{Subject, certify};
use std::net::TcpListener;
use std::thread::scope;
use std::time::Duration;
use tensor::{Cpu, Key};

/// Results of processes that have met, one for each rank of a layout.
fn each<T: Send>(layout: &Layout, process: impl Fn(Network) -> T + Sync) -> Vec<T> {
    const LIMIT: Duration = Duration::from_secs(20);
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let one = |rank| {
        let launch = Launch::nearby(rank, layout.ranks(), port);
        let met = Processes::meet(&launch, &RunInputs::default(), LIMIT).unwrap();
        process(Network { processes: Some(met), ..Network::default() })
    };
    scope(|threads| {
        let one = &one;
        let all: Vec<_> = (0..layout.ranks()).map(|rank| threads.spawn(move || one(rank))).collect();
        all.into_iter().map(|process| process.join().unwrap()).collect()
    })
}

/// Bits of the losses and norms of two steps of AdamW, and of the weights after them; of each rank here.
fn trained(subject: &Subject, layout: &Layout, network: &Network) -> Vec<Vec<u32>> {
    let world = network.world(layout, "two steps").unwrap();
    let values = RandomValues { seed: 3 };
    let ranks = session::run::<Cpu<f32>, _>((layout, &world), &values, |at| {
        let mut bits = Vec::new();
        let mut keep = |numbers: &[f32]| bits.extend(numbers.iter().map(|x| x.to_bits()));
        let mut trainer = Trainer::new(&at, &subject.model, (ADAMW, None))?;
        for (batch, _) in &subject.steps {
            let report = trainer.step(batch, 0.01)?;
            keep(&report.loss.read().unwrap());
            report.norm2.iter().for_each(|norm2| keep(&norm2.read().unwrap()));
        }
        for param in trainer.model().params() {
            let saved = param.tensors().find_map(|tensor| tensor.saved());
            if let Some(part) = saved {
                keep(&part.tensor.read().unwrap());
            }
        }
        Ok(bits)
    });
    ranks.unwrap()
}

/// Kills: a strategy that a carrier leaves other values, gradients or weights than threads have.
#[test]
fn every_strategy_is_proven_among_processes() {
    for (layout, subject) in listed(2) {
        let prove = |network| certify(&subject, &layout, &[Key(1)], (&network, &|_| ())).unwrap();
        for verdict in each(&layout, prove) {
            assert!(verdict.equal && verdict.tensors > 50, "{}", verdict.statement());
        }
    }
}

/// Kills: a difference among processes that is not located.
#[test]
fn a_difference_among_processes_is_located_as_among_threads() {
    let layout: Layout = "tp=2".parse().unwrap();
    let wrong = Newcomer(Adds::OnEveryRank);
    let found = |network: Network| {
        certify_panel(Scheme::with(&layout, &[&wrong]), &[Key(3)], (&network, &|_| ())).unwrap().statement()
    };
    let wanted = found(Network::default());
    assert!(wanted.contains("texts: blocks.0.attention.out") && wanted.contains("Look first at"), "{wanted}");
    assert_eq!(each(&layout, found)[0], wanted);
}

/// Kills: floats that are added in another order among processes, or rounded on their way.
#[test]
fn every_strategy_has_the_floats_of_threads_among_processes() {
    for (layout, subject) in listed(2) {
        let wanted = trained(&subject, &layout, &Network::default());
        let seen = each(&layout, |network| trained(&subject, &layout, &network).swap_remove(0));
        assert!(wanted.concat().len() > 50 && seen == wanted, "{layout}");
    }
}
