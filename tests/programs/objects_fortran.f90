! Fortran: arrays of a common block and of a module, accesses known by construction: .75 shared (.5 pos, .25 vel), .25 world::field.
! build: gfortran -O1 -g -ffree-line-length-none -J $OUT -o $BIN $SRC
module world
  implicit none
  real(8), save, volatile :: field(65536)
end module

subroutine run()
  use world
  implicit none
  common /shared/ pos, vel
  real(8), volatile :: pos(65536), vel(65536)
  real(8) :: sink
  integer :: i
  do i = 1, 65536
    sink = pos(i)
    vel(i) = 1
    pos(i) = 2
    sink = field(i)
  end do
end subroutine

program objects_fortran
  use iso_c_binding
  implicit none
  interface
    function getpid() bind(c)
      import :: c_int
      integer(c_int) :: getpid
    end function
  end interface
  character(16) :: text
  real(8) :: seconds
  integer(8) :: from, now, rate
  integer :: i
  seconds = 3600
  call get_command_argument(1, text)
  if (len_trim(text) > 0) read (text, *) seconds
  write (*, '(A, I0)') 'ready ', getpid()
  flush (6)
  call system_clock(from, rate)
  do
    do i = 1, 8
      call run()
    end do
    call system_clock(now)
    if (real(now - from, 8) / real(rate, 8) > seconds) exit
  end do
  write (*, '(A)') 'checksum'
end program
