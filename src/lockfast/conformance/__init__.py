"""The conformance suite: the contract of a store, as tests that run against any store.

To test your own store, install pytest, provide a harness, and run the suite with both APIs.
No test is skipped: a feature that the store does not declare must raise UnsupportedError.

    # conftest.py
    pytest.register_assert_rewrite("lockfast.conformance")

    # test_my_store.py
    import pytest
    from lockfast.conformance.contract import ApiContract, WireContract
    from lockfast.conformance.harness import Harness

    @pytest.fixture(params=["threads", "asyncio"])
    def harness(request):
        return Harness(f"mystore://localhost/{uuid4().hex}", request.param, MyStore.capabilities)

    class TestWire(WireContract): ...
    class TestApi(ApiContract): ...

`WireContract` sends commands to the store; `ApiContract` uses clients, as programs do.
For a store that declares `contend` instead of `queue`, use `ContendingApiContract`.
`lockfast.conformance.commands` compares a store with the reference, step by step, on
random commands. Do not override a test: a store that needs a weaker test does not fulfil
the contract.
"""
