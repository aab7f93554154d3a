use super::*;
use rayon::ThreadPoolBuilder;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// A model that is a function of a batch of numbers.
struct Function<F>(F);

impl<F: Fn(&[u32], &Batch<'_>) -> Vec<u32> + Send + Sync + 'static> Served for Function<F> {
    type Request = u32;
    type Response = u32;

    fn answer(&self, requests: &[u32], batch: &Batch<'_>) -> Vec<u32> {
        (self.0)(requests, batch)
    }
}

/// A lane with its model.
struct Fixture<F: Fn(&[u32], &Batch<'_>) -> Vec<u32> + Send + Sync + 'static> {
    lane: Lane<Function<F>>,
    model: Arc<Function<F>>,
    seen: Seen,
}

impl<F: Fn(&[u32], &Batch<'_>) -> Vec<u32> + Send + Sync + 'static> Fixture<F> {
    fn new(name: &str, config: LaneConfig, function: F) -> Self {
        let seen = Seen::default();
        let pool = Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap());
        let lane = Lane::new(name, config, pool, seen.clone()).unwrap();
        Self { lane, model: Arc::new(Function(function)), seen }
    }

    async fn submit(&self, permit: Permit, request: u32) -> Result<u32, ApiError> {
        self.lane.submit(permit, Arc::clone(&self.model), request).await
    }
}

/// Observed events.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Observed>>);

#[derive(Default)]
struct Observed {
    batches: Vec<usize>,
    abandoned: usize,
    panics: Vec<String>,
}

impl LaneObserver for Seen {
    fn on_batch(&self, size: usize) {
        self.0.lock().unwrap().batches.push(size);
    }

    fn on_abandoned(&self) {
        self.0.lock().unwrap().abandoned += 1;
    }

    fn on_panic(&self, message: String) {
        self.0.lock().unwrap().panics.push(message);
    }
}

const CONFIG: LaneConfig = LaneConfig { max_batch: 4, max_delay: Duration::from_millis(50), capacity: 8 };

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn echo(requests: &[u32], _: &Batch<'_>) -> Vec<u32> {
    requests.to_vec()
}

#[test]
fn requests_that_hold_a_permit_are_answered_together_and_each_gets_its_own_response() {
    let fixture = Fixture::new("double", CONFIG, |requests, _| requests.iter().map(|x| 2 * x).collect());
    let responses = block_on(async {
        let permits: Vec<Permit> = (0..4).map(|_| fixture.lane.reserve(1).unwrap()).collect();
        let submitted = permits.into_iter().zip(1..).map(|(permit, request)| fixture.submit(permit, request));
        futures_util::future::join_all(submitted).await
    });
    assert_eq!(responses, [Ok(2), Ok(4), Ok(6), Ok(8)]);
    assert_eq!(fixture.seen.0.lock().unwrap().batches, [4]);
}

#[test]
fn a_request_keeps_the_model_that_it_was_made_for() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let times = move |factor: u32| {
        let counted = Arc::clone(&counted);
        move |requests: &[u32], _: &Batch<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
            requests.iter().map(|x| factor * x).collect()
        }
    };
    let fixture = Fixture::new("swapped", CONFIG, times(2));
    let newer = Arc::new(Function(times(3)));
    let responses = block_on(async {
        let permits: Vec<Permit> = (0..4).map(|_| fixture.lane.reserve(1).unwrap()).collect();
        let submitted = permits.into_iter().zip(1..).map(|(permit, request)| {
            let model = if request % 2 == 0 { &newer } else { &fixture.model };
            fixture.lane.submit(permit, Arc::clone(model), request)
        });
        futures_util::future::join_all(submitted).await
    });
    assert_eq!(responses, [Ok(2), Ok(6), Ok(6), Ok(12)]);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "one batch for each model");
}

#[test]
fn a_request_that_comes_alone_does_not_wait() {
    let config = LaneConfig { max_delay: Duration::from_mins(1), ..CONFIG };
    let fixture = Fixture::new("alone", config, echo);
    let begin = Instant::now();
    assert_eq!(block_on(fixture.submit(fixture.lane.reserve(1).unwrap(), 7)), Ok(7));
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_batch_waits_no_longer_than_its_delay_for_a_request_that_never_comes() {
    let fixture = Fixture::new("patient", CONFIG, echo);
    let _never = fixture.lane.reserve(1).unwrap();
    assert_eq!(block_on(fixture.submit(fixture.lane.reserve(1).unwrap(), 7)), Ok(7));
}

#[test]
fn a_full_queue_refuses_and_has_room_again_after_a_response() {
    let (go, wait) = sync_channel::<()>(0);
    let wait = Mutex::new(wait);
    let fixture = Fixture::new("small", CONFIG, move |requests, _| {
        wait.lock().unwrap().recv().unwrap();
        requests.to_vec()
    });
    let permit = fixture.lane.reserve(8).unwrap();
    assert_eq!(fixture.lane.reserve(1).unwrap_err(), ApiError::QueueFull("small".into()));
    let too_many = fixture.lane.reserve(9).unwrap_err();
    assert!(matches!(too_many, ApiError::Unprocessable(reason) if reason.contains("the most is 8")));
    thread::scope(|scope| {
        let response = scope.spawn(|| block_on(fixture.submit(permit, 1)));
        go.send(()).unwrap();
        assert_eq!(response.join().unwrap(), Ok(1));
    });
    assert_eq!(fixture.lane.in_use(), 0);
    assert!(fixture.lane.reserve(8).is_ok());
}

#[test]
fn a_panic_is_the_response_to_its_request_alone() {
    let fixture = Fixture::new("thirteen", CONFIG, |requests, _| {
        assert!(!requests.contains(&13), "thirteen came");
        requests.to_vec()
    });
    let responses = block_on(async {
        let permits: Vec<Permit> = (0..3).map(|_| fixture.lane.reserve(1).unwrap()).collect();
        let submitted = permits.into_iter().zip([12, 13, 14]).map(|(permit, x)| fixture.submit(permit, x));
        futures_util::future::join_all(submitted).await
    });
    assert_eq!(responses, [Ok(12), Err(ApiError::Internal), Ok(14)]);
    assert!(fixture.seen.0.lock().unwrap().panics.iter().all(|message| message.contains("thirteen came")));
    assert_eq!(block_on(fixture.submit(fixture.lane.reserve(1).unwrap(), 1)), Ok(1), "the lane goes on");
}

#[test]
fn a_request_abandoned_before_its_turn_is_never_computed() {
    let (go, wait) = sync_channel::<()>(0);
    let (wait, done) = (Mutex::new(wait), Arc::new(Mutex::new(Vec::new())));
    let computed = Arc::clone(&done);
    let fixture = Arc::new(Fixture::new("busy", CONFIG, move |requests, _| {
        wait.lock().unwrap().recv().unwrap();
        computed.lock().unwrap().extend_from_slice(requests);
        requests.to_vec()
    }));
    block_on(async {
        let submit = |permit: Permit, request: u32| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move { fixture.submit(permit, request).await })
        };
        let (first, second) = (fixture.lane.reserve(4).unwrap(), fixture.lane.reserve(1).unwrap());
        let (busy, abandoned) = (submit(first, 1), submit(second, 2));
        // both are in the queue before one of them leaves
        tokio::time::sleep(Duration::from_millis(20)).await;
        abandoned.abort();
        assert!(abandoned.await.unwrap_err().is_cancelled());
        go.send(()).unwrap();
        assert_eq!(busy.await.unwrap(), Ok(1));
        let last = submit(fixture.lane.reserve(1).unwrap(), 3);
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        assert_eq!(last.await.unwrap(), Ok(3));
    });
    assert_eq!(*done.lock().unwrap(), [1, 3]);
    assert_eq!(fixture.seen.0.lock().unwrap().abandoned, 1);
}

#[test]
fn work_of_many_steps_ends_when_its_client_leaves() {
    let (started, start) = sync_channel::<()>(1);
    let (ended, end) = sync_channel::<()>(1);
    let fixture = Arc::new(Fixture::new("steps", CONFIG, move |requests, batch| {
        started.send(()).unwrap();
        while batch.is_wanted() {
            thread::yield_now();
        }
        ended.send(()).unwrap();
        requests.to_vec()
    }));
    block_on(async {
        let own = Arc::clone(&fixture);
        let permit = fixture.lane.reserve(1).unwrap();
        let submitted = tokio::spawn(async move { own.submit(permit, 1).await });
        tokio::task::yield_now().await;
        start.recv().unwrap();
        submitted.abort();
        assert!(submitted.await.unwrap_err().is_cancelled());
    });
    end.recv_timeout(Duration::from_secs(30)).expect("the work ended");
}
