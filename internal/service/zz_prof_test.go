package service_test
import ("testing";"context";"sync";"fmt";"time";"crypto/rand"
"countersign/internal/keyring";"countersign/internal/ledger";"countersign/internal/service";"countersign/internal/store/sqlite";"countersign/internal/canon")
func BenchmarkZZ(b *testing.B){
 ctx:=context.Background(); d:=b.TempDir()
 st,err:=sqlite.Open(ctx,d+"/x.db"); if err!=nil{b.Fatal(err)}; st.Migrate(ctx)
 ring,err:=keyring.Create(d+"/k.json",rand.Reader,time.Now()); if err!=nil{b.Fatal(err)}
 s:=service.New(service.Config{Store:st,Keys:ring})
 first,err:=s.Operator().Bootstrap(ctx); if err!=nil{b.Fatal(err)}
 b.ResetTimer()
 var wg sync.WaitGroup
 N:=64
 for g:=0;g<N;g++{ wg.Add(1); go func(){ defer wg.Done()
  caller,_:=s.Authenticate(ctx,first.Key.Text.Reveal()); caller,_=s.Authenticate(ctx,first.Key.Text.Reveal())
  var id ledger.ChainID
  for i:=0;i<b.N/N;i++{
   if i%50==0 { v,err:=s.OpenChain(ctx,caller,&ledger.Chain{Name:"x",Environment:"p"},""); if err!=nil{panic(err)}; id=v.ID }
   v,_:=canon.Parse([]byte(fmt.Sprintf(`{"agent_name":"billing-agent","action_type":"tool_call","action_name":"send_invoice","payload":{"customer":"cus_123","amount":12.5,"currency":"USD","memo":"monthly invoice for services rendered","lines":[{"sku":"a","qty":1},{"sku":"b","qty":2}]},"metadata":{"step":%d},"idempotency_key":"k-%d-%d"}`,i,g,i)))
   a,err:=ledger.ParseAction(v); if err!=nil{panic(err)}
   if _,err:=s.RecordEvent(ctx,caller,id,a);err!=nil{panic(err)}
  }}() }
 wg.Wait(); b.StopTimer(); s.Close(); st.Close()
}
