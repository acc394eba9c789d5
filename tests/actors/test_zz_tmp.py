import time, pytest, anyio
from pool import *
pytestmark = pytest.mark.anyio
async def test_x(fleet):
    handlers = Handlers()
    @handlers.job("give")
    async def give(job: Job, size: int) -> str:
        return "x" * size
    t=time.time(); n=await fleet.node(handlers, result_bytes_max=200_000); print('open', time.time()-t)
    t=time.time(); client = await fleet.node(); print('open', time.time()-t)
    for size in (1000, 1022, 1100, 199_998):
        t=time.time()
        ref = await client.dispatch(give, f"k{size}", size)
        print('disp', time.time()-t, await ref.status(), len(client.workers)); t=time.time()
        assert len(await ref.result(timeout_s=5)) == size
        print('res', time.time()-t, await ref.status())
