"""The contract of a store, as tests that any store can be put to.

For whoever writes a store: install pytest, give the suite a harness, and run it in both
faces. Nothing is skipped: what the store does not declare must raise UnsupportedError.

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

`WireContract` speaks to the store in commands, `ApiContract` through clients as users do.
A store that declares `contend` instead of `queue` derives from `ContendingApiContract`.
`lockfast.conformance.commands` compares a store with the reference, step by step, on
random commands. Do not override a test: a store that needs one loosened has another
contract.
"""
